package examples

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/ringnet/ringnet/internal/programs"
)

// Operators copy parts of the documents: units that systemd reads, YAML and JSON.

// blocks returns the indented parts of a document.
func blocks(t *testing.T, document string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", document))
	require.NoError(t, err)
	var all []string
	for _, block := range regexp.MustCompile(`(?m)(?:^    .*\n|^\n)+`).FindAllString(string(text), -1) {
		if strings.TrimSpace(block) != "" {
			all = append(all, regexp.MustCompile(`(?m)^    `).ReplaceAllString(block, ""))
		}
	}
	require.NotEmpty(t, all)
	return all
}

// systemd ignores lines that it does not know, and starts the unit without them.
func TestSystemdAcceptsTheUnitsOfDocumentsAndExamples(t *testing.T) {
	units := make(map[string]string)
	for _, document := range []string{"docs/deploy.md", "docs/command.md"} {
		for _, block := range blocks(t, document) {
			if strings.HasPrefix(strings.TrimSpace(block), "[Service]") {
				units[filepath.Base(document)+".service"] = block
			}
		}
	}
	for _, unit := range []string{"activation.service", "activation.socket"} {
		text, err := os.ReadFile(filepath.Join("activation", unit))
		require.NoError(t, err)
		units[unit] = string(text)
	}
	require.Len(t, units, 4)

	dir := t.TempDir()
	args := []string{"verify", "--man=no", "--recursive-errors=no"}
	for name, unit := range units {
		// The programs need not be installed.
		unit = regexp.MustCompile(`(?m)^ExecStart=/usr/local/bin/\w+`).ReplaceAllString(unit, "ExecStart=/bin/true")
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(unit), 0o600))
		args = append(args, path)
	}
	out, err := exec.CommandContext(t.Context(), programs.Path(t, "systemd-analyze", "systemd"), args...).CombinedOutput()
	require.NoError(t, err, string(out))
	require.NotContains(t, string(out), dir, "a warning")
}

// pod and network are what Kubernetes and its plugins read of the recipes, as far as one
// part of a recipe must fit another.
type pod struct {
	Spec struct {
		HostNetwork bool `yaml:"hostNetwork"`
		Containers  []struct {
			Resources struct {
				Limits map[string]string `yaml:"limits"`
			} `yaml:"resources"`
			SecurityContext struct {
				Capabilities struct {
					Add []string `yaml:"add"`
				} `yaml:"capabilities"`
			} `yaml:"securityContext"`
		} `yaml:"containers"`
	} `yaml:"spec"`
}

type network struct {
	Kind     string `yaml:"kind"`
	Metadata struct {
		Name        string            `yaml:"name"`
		Annotations map[string]string `yaml:"annotations"`
	} `yaml:"metadata"`
	Spec struct {
		Config string `yaml:"config"`
	} `yaml:"spec"`
}

func TestRecipesForKubernetesFitTogether(t *testing.T) {
	var devices struct {
		ConfigList []struct {
			ResourceName string `json:"resourceName"`
			RdmaHcaMax   int    `json:"rdmaHcaMax"`
			Selectors    struct {
				IfNames []string `json:"ifNames"`
			} `json:"selectors"`
		} `json:"configList"`
	}
	var p pod
	var n network
	for _, block := range blocks(t, "docs/deploy.md") {
		switch first, _, _ := strings.Cut(strings.TrimSpace(block), "\n"); {
		case strings.HasPrefix(first, "{"):
			decodeJSON(t, block, &devices)
		case first == "spec:":
			require.NoError(t, yaml.Unmarshal([]byte(block), &p), block)
		case strings.HasPrefix(first, "apiVersion:"):
			require.NoError(t, yaml.Unmarshal([]byte(block), &n), block)
		}
	}
	document, err := os.ReadFile("../docs/deploy.md")
	require.NoError(t, err)

	require.Len(t, devices.ConfigList, 1)
	require.NotEmpty(t, devices.ConfigList[0].Selectors.IfNames)
	require.Positive(t, devices.ConfigList[0].RdmaHcaMax)
	require.Len(t, p.Spec.Containers, 1)
	require.Equal(t, map[string]string{"rdma/" + devices.ConfigList[0].ResourceName: "1"}, p.Spec.Containers[0].Resources.Limits)
	require.Equal(t, []string{"IPC_LOCK"}, p.Spec.Containers[0].SecurityContext.Capabilities.Add)
	require.True(t, p.Spec.HostNetwork)

	require.Equal(t, "NetworkAttachmentDefinition", n.Kind)
	resource := n.Metadata.Annotations["k8s.v1.cni.cncf.io/resourceName"]
	require.NotEmpty(t, resource)
	require.Contains(t, string(document), "`"+resource+": 1`")
	require.Contains(t, string(document), "`k8s.v1.cni.cncf.io/networks: "+n.Metadata.Name+"`")
	var config struct {
		Name    string `json:"name"`
		Plugins []struct {
			Type string `json:"type"`
		} `json:"plugins"`
	}
	decodeJSON(t, n.Spec.Config, &config)
	require.Equal(t, n.Metadata.Name, config.Name)
	require.Len(t, config.Plugins, 2)
	require.Equal(t, "rdma", config.Plugins[1].Type, "behind the plugin that makes the interface")
}

func decodeJSON(t *testing.T, text string, v any) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(text), v), text)
}
