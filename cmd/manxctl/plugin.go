package main

import (
	"path/filepath"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// pluginName is the name of the program, and how it is called, as a plugin of kubectl.
const (
	pluginFile = "kubectl-manx"
	pluginName = "kubectl manx"
)

// isPlugin reports whether kubectl runs this program, or a user under the name that kubectl looks for.
func isPlugin(program string) bool {
	return strings.TrimSuffix(strings.ToLower(filepath.Base(program)), ".exe") == pluginFile
}

var ownName = regexp.MustCompile(`\bmanxctl\b`)

// ofNodes are words of the help for those who are on no node.
var ofNodes = strings.NewReplacer("this node", "the node", "the local manxd", "the node's manxd", "The local manxd",
	"The node's manxd", "the local node", "a node")

// asPlugin renames the program in all of its help.
func asPlugin(root *cobra.Command) {
	root.Use = pluginFile
	root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: pluginName}
	rename(root)
}

func rename(cmd *cobra.Command) {
	word := inPlugin
	if cmd.HasParent() { // the flags of the program itself are about this host
		word = func(text string) string { return ofNodes.Replace(inPlugin(text)) }
	}
	for _, text := range []*string{&cmd.Short, &cmd.Long, &cmd.Example} {
		*text = word(*text)
	}
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) { f.Usage = word(f.Usage) })
	for _, sub := range cmd.Commands() {
		rename(sub)
	}
}

// inPlugin returns a text with the name of the program as users of the plugin call it.
func inPlugin(text string) string { return ownName.ReplaceAllString(text, pluginName) }
