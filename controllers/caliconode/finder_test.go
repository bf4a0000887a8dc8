package caliconode

import (
	"net"
	"path/filepath"
	"testing"
)

// A socket is one of calico-node if BIRD greets there. The file stays behind a killed daemon, other programs may serve
// something else, or nothing, and Manx itself can serve the socket in BIRD's place.
func TestSockets(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		name, greeting string
		want           bool
	}{
		{"bird", "0001 BIRD v0.3.3+birdv1.6.8 ready.\n", true}, {"manx", "0001 BIRD 1.6.8-manx ready.\n", false},
		{"other", "hello\n", false}, {"silent", "", false}, {"endless", string(make([]byte, 1<<20)), false},
	} {
		path := filepath.Join(dir, c.name)
		l, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
				go func() { _, _ = conn.Write([]byte(c.greeting)) }()
			}
		}()
		f := Finder{Sockets: []string{filepath.Join(dir, "absent"), path}}
		if active, err := f.Find(t.Context()); err != nil || (active == "the BGP daemon behind "+path) != c.want {
			t.Errorf("%s: %q, %v", c.name, active, err)
		}
		l.(*net.UnixListener).SetUnlinkOnClose(false)
		_ = l.Close()
		if active, err := f.Find(t.Context()); err != nil || active != "" {
			t.Errorf("%s, without a listener: %q, %v", c.name, active, err)
		}
	}
}
