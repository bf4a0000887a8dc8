//go:build !linux

package hostlocal

import (
	"context"
	"errors"
)

// manxctl is also built for other systems, on which there is no node.
var errNotLinux = errors.New("addresses of host-local are on a node, which has Linux")

// Read reads a folder, on Linux.
func Read(string) (Content, error) { return Content{}, errNotLinux }

// lock locks a folder, on Linux.
func lock(context.Context, string) (func(), error) { return func() {}, errNotLinux }

// Others lists the neighbours of a folder, on Linux.
func Others(string) []string { return nil }

func remove(string, File) error { return errNotLinux }

func tidy(string) error { return errNotLinux }
