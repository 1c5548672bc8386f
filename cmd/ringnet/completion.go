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
	"isFile": isFile,
	// takesFiles reports whether arguments of a subcommand may be names of files.
	"takesFiles": func(n *kong.Node) bool { return slices.ContainsFunc(n.Positional, isFile) },
	"quoted":     quoted,
}).Parse(`
{{- define "bash" -}}
_ringnet() {
	local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} front= command= files= list= word
	local words="{{range .Flags}}--{{.Name}} {{end}}{{range .Children}}{{.Name}} {{end}}"
	case $cur in # behind a flag, = is a word in bash, and none in zsh
	=) cur= ;;
	--*=*) prev=${cur%%=*} front=${cur%%=*}= cur=${cur#*=} ;;
	*) [ "$prev" != = ] || prev=${COMP_WORDS[COMP_CWORD-2]} ;;
	esac
	for word in "${COMP_WORDS[@]:1:$((COMP_CWORD-1))}"; do
		case $word in
		{{range $i, $command := .Children}}{{if $i}}|{{end}}{{.Name}}{{end}}) command=$word; break ;;
		esac
	done
	case $command in
	{{- range .Children}}
	{{.Name}})
		words="{{range .Positional}}{{values .}}{{end}}" files={{if takesFiles .}}yes{{end}}
		[[ $cur != -* ]] || words="{{range flags $ .}}--{{.Name}} {{end}}" files=
		case $prev in
		{{- range flags $ .}}{{if not .IsBool}}
		--{{.Name}}{{if .Short}}|-{{printf "%c" .Short}}{{end}}) words="{{values .Value}}" files={{if isFile .Value}}yes{{end}} list={{if .IsSlice}}yes{{end}} ;;
		{{- end}}{{end}}
		esac ;;
	{{- end}}
	esac
	if [ -n "$list" ] && [[ $cur == *,* ]]; then
		front=$front${cur%,*},
		cur=${cur##*,}
	fi
	COMPREPLY=($(compgen ${files:+-f} -P "$front" -W "$words" -- "$cur"))
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
complete -c ringnet -n '__fish_seen_subcommand_from {{.Name}}' {{if takesFiles .}}-F{{else}}-f{{end}}
{{range flags $ . -}}
complete -c ringnet -n '__fish_seen_subcommand_from {{$command.Name}}' -l {{.Name}}{{if .Enum}} -x -a {{quoted (values .Value)}}{{else if isFile .Value}} -r{{else if not .IsBool}} -x{{end}} -d {{quoted .Help}}
{{end}}{{end}}{{end}}`))

// isFile reports whether a flag or an argument may be the name of a file.
func isFile(v *kong.Value) bool {
	return v.Name == "file" || strings.HasPrefix(v.Tag.Type, "existing")
}

// quoted is a text as a word of fish.
func quoted(text string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, "'", `\'`).Replace(text) + "'"
}
