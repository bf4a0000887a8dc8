package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// otherWords are words of other tools for what a command here does.
var otherWords = map[string][]string{
	"lint": {"validate"}, "check": {"health", "validate", "ipam check"},
	"ls": {"get"}, "list": {"get"}, "show": {"get", "describe"}, "rm": {"delete"},
	"trace":   {"explain --live"},
	"sysdump": {"diags"}, "diag": {"diags"}, "bugtool": {"diags"}, "bundle": {"diags"},
	"logs": {"drops", "history", "loglevel"}, "events": {"history", "watch"},
	"cordon": {"node drain"}, "uncordon": {"node undrain"}, "bgp": {"get peers"},
}

// elsewhere are commands of calicoctl whose work no command does here.
var elsewhere = map[string]string{
	"manxctl node run": "manxd runs a node: systemd or Kubernetes starts it",
	"manxctl node checksystem": "manxd checks the kernel when it starts, and names in its log and in \"manxctl " +
		"status\" what is missing",
}

// unknownCommand is the error about a word that is no command of cmd, with those that are meant perhaps.
func unknownCommand(cmd *cobra.Command, word string) error {
	if text := elsewhere[cmd.CommandPath()+" "+word]; text != "" {
		return usagef("manxctl has no %q: %s", strings.TrimPrefix(cmd.CommandPath()+" "+word, "manxctl "), text)
	}
	text := fmt.Sprintf("unknown command %q for %q", word, cmd.CommandPath())
	if likely := similarCommands(cmd, word); len(likely) > 0 {
		text += "; did you mean " + strings.Join(likely, " or ") + "?"
	}
	return usagef("%s", text)
}

// similarCommands returns quoted commands: those of a similar name, of the same name elsewhere, and those that do what
// the word means in other tools.
func similarCommands(cmd *cobra.Command, word string) []string {
	var found []string
	add := func(words ...string) {
		for _, w := range words {
			if q := fmt.Sprintf("%q", w); !slices.Contains(found, q) {
				found = append(found, q)
			}
		}
	}
	if cmd.SuggestionsMinimumDistance <= 0 {
		cmd.SuggestionsMinimumDistance = 2 // cobra's own default
	}
	root := cmd.Root()
	within := strings.TrimPrefix(strings.TrimPrefix(cmd.CommandPath(), root.Name()), " ")
	for _, name := range cmd.SuggestionsFor(word) {
		add(strings.TrimSpace(within + " " + name))
	}
	var search func(*cobra.Command)
	search = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			if sub.IsAvailableCommand() && sub.Name() == word {
				add(strings.TrimPrefix(sub.CommandPath(), root.Name()+" "))
			}
			search(sub)
		}
	}
	search(root)
	add(otherWords[word]...)
	return found
}

// onlyCommands is the rule of arguments of a command that has commands of its own and does nothing itself.
func onlyCommands(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return unknownCommand(cmd, args[0])
}

// noArgs is the rule of arguments of a command that takes none.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return usagef("%s takes no argument: %q", cmd.CommandPath(), args[0])
}

// filesOnly is noArgs for a command that reads the files of -f.
func filesOnly(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return usagef("%s takes no argument: %q; did you mean \"-f %s\"?", cmd.CommandPath(), args[0], args[0])
}

// flagError names an unknown command before the unknown flag behind it: "validate -f x" is no mistake about -f.
func flagError(cmd *cobra.Command, err error) error {
	if words := cmd.Flags().Args(); cmd.HasAvailableSubCommands() && len(words) > 0 {
		return unknownCommand(cmd, words[0])
	}
	return err
}

func helpCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "help [COMMAND]",
		Short:   "Show the help of a command, as --help does",
		Example: "  manxctl help get\n  manxctl help node drain",
		RunE: func(cmd *cobra.Command, args []string) error {
			about, rest, err := cmd.Root().Find(args)
			switch {
			case err != nil:
				return err
			case len(rest) > 0 && about.HasAvailableSubCommands():
				return unknownCommand(about, rest[0])
			case len(rest) > 0:
				return usagef("%s has no command %q", about.CommandPath(), rest[0])
			}
			about.InitDefaultHelpFlag()
			return about.Help()
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			about, rest, err := cmd.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			var names []string
			for _, sub := range about.Commands() {
				if sub.IsAvailableCommand() {
					names = append(names, sub.Name()+"\t"+sub.Short)
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
	}
}
