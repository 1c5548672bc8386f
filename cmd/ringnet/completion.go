package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

type completionCommand struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

// Run prints what a shell has to read to complete ringnet's subcommands and flags.
func (c *completionCommand) Run(k *kong.Context, s *streams) error {
	switch c.Shell {
	case "fish":
		printFish(s.out, k.Model.Node)
	case "zsh":
		fmt.Fprintln(s.out, "autoload -U +X bashcompinit && bashcompinit")
		fallthrough
	default:
		printBash(s.out, k.Model.Node)
	}
	return nil
}

// flagsOf are the flags of a subcommand, with those that all have.
func flagsOf(root, node *kong.Node) (flags []*kong.Flag) {
	for _, f := range append(append([]*kong.Flag(nil), node.Flags...), root.Flags...) {
		if !f.Hidden {
			flags = append(flags, f)
		}
	}
	return flags
}

// valuesOf are the values that a flag or an argument may have, if they are few.
func valuesOf(v *kong.Value) []string {
	if v.Enum == "" {
		return nil
	}
	return slices.DeleteFunc(v.EnumSlice(), func(s string) bool { return s == "" })
}

func printBash(w io.Writer, root *kong.Node) {
	var words []string
	for _, f := range flagsOf(root, &kong.Node{}) {
		words = append(words, "--"+f.Name)
	}
	fmt.Fprintln(w, "_ringnet() {\n\tlocal cur=${COMP_WORDS[COMP_CWORD]} flags= values=\n\tcase ${COMP_WORDS[1]} in")
	for _, child := range root.Children {
		var flags, values []string
		for _, f := range flagsOf(root, child) {
			flags = append(flags, "--"+f.Name)
			if v := valuesOf(f.Value); v != nil {
				values = append(values, fmt.Sprintf("--%s) values=%q ;;", f.Name, strings.Join(v, " ")))
			}
		}
		if len(child.Positional) > 0 {
			if v := valuesOf(child.Positional[0]); v != nil {
				values = append(values, fmt.Sprintf("%s) values=%q ;;", child.Name, strings.Join(v, " ")))
			}
		}
		words = append(words, child.Name)
		fmt.Fprintf(w, "\t%s) flags=\"%s\"", child.Name, strings.Join(flags, " "))
		if values != nil {
			fmt.Fprintf(w, "; case ${COMP_WORDS[COMP_CWORD-1]} in %s esac", strings.Join(values, " "))
		}
		fmt.Fprintln(w, " ;;")
	}
	fmt.Fprintf(w, `	esac
	if [ "$COMP_CWORD" = 1 ]; then
		COMPREPLY=($(compgen -W "%s" -- "$cur"))
	elif [ -n "$values" ]; then
		COMPREPLY=($(compgen -W "$values" -- "$cur"))
	elif [[ $cur == -* ]]; then
		COMPREPLY=($(compgen -W "$flags" -- "$cur"))
	else
		COMPREPLY=($(compgen -f -- "$cur"))
	fi
}
complete -o filenames -F _ringnet ringnet
`, strings.Join(words, " "))
}

func printFish(w io.Writer, root *kong.Node) {
	for _, child := range root.Children {
		fmt.Fprintf(w, "complete -c ringnet -f -n __fish_use_subcommand -a %s -d %s\n", child.Name, quoted(child.Help))
		for _, f := range flagsOf(root, child) {
			values := ""
			if v := valuesOf(f.Value); v != nil {
				values = " -x -a " + quoted(strings.Join(v, " "))
			}
			fmt.Fprintf(w, "complete -c ringnet -n '__fish_seen_subcommand_from %s' -l %s%s -d %s\n", child.Name, f.Name, values, quoted(f.Help))
		}
	}
}

// quoted is a text as a word of fish.
func quoted(text string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, "'", `\'`).Replace(text) + "'"
}
