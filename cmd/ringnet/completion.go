package main

import (
	"slices"
	"strings"
	"text/template"

	"github.com/alecthomas/kong"
)

type completionCommand struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

// Run prints what a shell has to read to complete ringnet's subcommands and flags.
func (c *completionCommand) Run(k *kong.Context, s *streams) error {
	return completions.ExecuteTemplate(s.out, c.Shell, k.Model.Node)
}

var completions = template.Must(template.New("").Funcs(template.FuncMap{
	// flags are those of a subcommand, with those that all have.
	"flags": func(root, node *kong.Node) []*kong.Flag { return slices.Concat(node.Flags, root.Flags) },
	// values are those that a flag or an argument may have, if they are few.
	"values": func(v *kong.Value) string { return strings.TrimSpace(strings.ReplaceAll(v.Enum, ",", " ")) },
	"quoted": quoted,
}).Parse(`
{{- define "bash" -}}
_ringnet() {
	local cur=${COMP_WORDS[COMP_CWORD]} flags= values=
	case ${COMP_WORDS[1]} in
	{{- range $command := .Children}}
	{{.Name}}) flags="{{range flags $ .}}--{{.Name}} {{end}}"
		case ${COMP_WORDS[COMP_CWORD-1]} in
		{{- range flags $ .}}{{if .Enum}}
		--{{.Name}}) values="{{values .Value}}" ;;{{end}}{{end}}
		{{- range .Positional}}{{if .Enum}}
		{{$command.Name}}) values="{{values .}}" ;;{{end}}{{end}}
		esac ;;
	{{- end}}
	esac
	if [ "$COMP_CWORD" = 1 ]; then
		COMPREPLY=($(compgen -W "{{range .Flags}}--{{.Name}} {{end}}{{range .Children}}{{.Name}} {{end}}" -- "$cur"))
	elif [ -n "$values" ]; then
		COMPREPLY=($(compgen -W "$values" -- "$cur"))
	elif [[ $cur == -* ]]; then
		COMPREPLY=($(compgen -W "$flags" -- "$cur"))
	else
		COMPREPLY=($(compgen -f -- "$cur"))
	fi
}
complete -o filenames -F _ringnet ringnet
{{end}}

{{- define "zsh" -}}
autoload -U +X bashcompinit && bashcompinit
{{template "bash" .}}
{{- end}}

{{- define "fish"}}
{{- range $command := .Children -}}
complete -c ringnet -f -n __fish_use_subcommand -a {{.Name}} -d {{quoted .Help}}
{{range flags $ . -}}
complete -c ringnet -n '__fish_seen_subcommand_from {{$command.Name}}' -l {{.Name}}{{if .Enum}} -x -a {{quoted (values .Value)}}{{end}} -d {{quoted .Help}}
{{end}}{{end}}{{end}}`))

// quoted is a text as a word of fish.
func quoted(text string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, "'", `\'`).Replace(text) + "'"
}
