package main

import (
	"fmt"

	"github.com/manxnet/manx/daemon/envflag"
)

// birdOptions has the setting of versions that answered BIRD's clients themselves.
type birdOptions struct{ socket string }

// Flags implements group.
func (o *birdOptions) Flags(s envflag.Set) {
	s.String(&o.socket, "bird-socket", "", "must be empty: the program manx-birdsock answers BIRD's commands",
		"MANX_BIRD_SOCKET")
}

// Check implements group.
func (o *birdOptions) Check() error {
	if o.socket == "" {
		return nil
	}
	return fmt.Errorf("--bird-socket=%s: manxd does not answer BIRD's commands itself: remove the setting, and run "+
		"\"manx-birdsock --socket %s\" beside manxd", o.socket, o.socket)
}
