package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/manxnet/manx/cmd/manxctl/archive"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/table"
)

func (c *cli) editCommand() *cobra.Command {
	var ns namespaces
	cmd := &cobra.Command{
		Use:   "edit KIND NAME",
		Short: "Change an object in an editor",
		Long: `Write an object as YAML into a file, run the editor in MANXCTL_EDITOR, KUBE_EDITOR, VISUAL or EDITOR (vi), and store
the result, checked as by replace. A file that is not changed stores nothing. After an error the file stays, and its
name is printed. An object that another program changed meanwhile is not overwritten.`,
		Example: "  manxctl edit bgppeer tor-1",
		RunE: func(cmd *cobra.Command, args []string) error {
			ns.context = c.namespace
			t, err := oneTarget(cmd, args, ns)
			if err != nil {
				return err
			}
			if len(t.names) != 1 {
				return usagef("edit takes one object")
			}
			store, err := c.open(cmd.Context())
			if err != nil {
				return err
			}
			defer store.Close() //nolint:errcheck // the write has been answered
			return c.edit(cmd.Context(), store, t.key(ns, t.names[0]))
		},
		ValidArgsFunction: c.completeObjects,
	}
	cmd.Flags().StringVarP(&ns.name, "namespace", "n", "", "namespace of namespaced kinds (\"default\" if not given)")
	return cmd
}

func (c *cli) edit(ctx context.Context, store datastore.Store, key model.Key) error {
	stored, err := store.Get(ctx, key)
	if err != nil {
		return err
	}
	was, err := documentText(stored)
	if err != nil {
		return err
	}
	file, text, err := c.inEditor(ctx, key, was)
	if err != nil {
		return err
	}
	done := "unchanged"
	if text != was {
		next := stored.Clone()
		next.Err = nil
		if err = setDocument(next, []byte(text)); err == nil {
			if done, err = storeChanged(ctx, store, stored, next, "edited"); err == nil {
				c.warnUnusedOf(next)
			}
		}
	}
	if err != nil {
		return fmt.Errorf("%w (your text is in %s)", err, file)
	}
	return errors.Join(table.Names(c.out, []*model.Object{{Key: key}}, done), archive.Forget(file))
}

// inEditor returns a file with a text, and what the user made of it.
func (c *cli) inEditor(ctx context.Context, key model.Key, text string) (file, edited string, err error) {
	file, err = archive.Temporary("manxctl-"+strings.ToLower(string(key.Kind))+"-*.yaml", []byte(text))
	if err != nil {
		return "", "", err
	}
	words := []string{"vi"}
	for _, variable := range []string{"MANXCTL_EDITOR", "KUBE_EDITOR", "VISUAL", "EDITOR"} {
		if set := strings.Fields(c.env(variable)); len(set) > 0 {
			words = set
			break
		}
	}
	editor := exec.CommandContext(ctx, words[0], append(words[1:], file)...)
	editor.Stdin, editor.Stdout, editor.Stderr = c.in, c.out, c.err
	if err := editor.Run(); err != nil {
		return "", "", fmt.Errorf("the editor %q: %w (your text is in %s)", words[0], err, filepath.Clean(file))
	}
	content, err := os.ReadFile(file)
	return file, string(bytes.ReplaceAll(content, []byte("\r\n"), []byte("\n"))), err
}
