package main

import (
	"slices"
	"strings"
	"testing"
)

func TestGobgpUsers(t *testing.T) {
	for list, want := range map[string][]uint32{"": nil, "1000": {1000}, "0, 1000,4294967294": {0, 1000, 4294967294}} {
		if got, err := parseUIDs(list); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %v, %v; want %v", list, got, err, want)
		}
	}
	for _, list := range []string{"root", "-1", "4294967295", "1000,", "0x10", "1.5"} {
		o := gobgpOptions{users: list}
		if err := o.Check(); err == nil || !strings.Contains(err.Error(), "--gobgp-allow-uids="+list) ||
			!strings.Contains(err.Error(), "want a number") {
			t.Errorf("%q: %v", list, err)
		}
	}
	for listen, good := range map[string]bool{"": true, "127.0.0.1:50051": true, "[::1]:50051": true,
		"0.0.0.0:50051": false, "10.0.0.1:50051": false, "localhost:50051": false} {
		o := gobgpOptions{listen: listen}
		if err := o.Check(); (err == nil) != good {
			t.Errorf("--gobgp-listen=%s: %v", listen, err)
		}
	}
}
