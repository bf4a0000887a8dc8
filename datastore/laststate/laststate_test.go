package laststate

import (
	"bytes"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/safefile"
)

var kinds = []model.Kind{model.KindNode, model.KindIPPool, model.KindBlockAffinity, model.KindService,
	model.KindWorkloadEndpoint, model.KindClusterInformation}

var origin = Origin{Type: "etcdv3", Servers: []string{"https://e1:2379", "https://e2:2379"}, Authorities: []string{"a"}}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// state has an object of each form in which the datastore has them.
func state() *State {
	n := &model.Node{Spec: model.NodeSpec{BGP: &model.NodeBGPSpec{IPv4Address: "192.0.2.1/24"}}}
	n.Labels = map[string]string{"rack": "<a & b>"}
	p := &model.IPPool{}
	p.Spec.CIDR = "10.0.0.0/16"
	s := &model.Service{}
	s.Spec.ClusterIP = "10.96.0.1"
	w := &model.WorkloadEndpoint{Spec: model.WorkloadEndpointSpec{Node: "n1", Orchestrator: "k8s",
		InterfaceName: "cali1", IPNetworks: []string{"10.0.0.1/32"}}}
	c := &v3.ClusterInformation{}
	c.Spec.ClusterGUID = "0123"
	block := model.AffinityKey(model.Affinity{Type: model.AffinityHost, Host: "n1",
		CIDR: netip.MustParsePrefix("10.0.0.0/26")})
	objects := []*model.Object{model.NewObject(model.ResourceKey(model.KindNode, "n1"), n),
		model.NewObject(model.ResourceKey(model.KindIPPool, "p"), p),
		model.NewObject(block, &model.BlockAffinity{State: model.StateConfirmed}),
		model.NewObject(model.Key{Kind: model.KindService, Namespace: "default", Name: "s"}, s),
		model.NewObject(model.Key{Kind: model.KindWorkloadEndpoint, Namespace: "default", Name: "w"}, w),
		model.NewObject(model.ResourceKey(model.KindClusterInformation, "default"), c)}
	for i, o := range objects {
		o.Revision = int64(7 + i)
	}
	return &State{Node: "n1", Origin: origin, Written: time.Date(2026, 11, 26, 14, 2, 0, 0, time.UTC), Revision: 99,
		Objects: objects}
}

func write(t *testing.T, s *State) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "last-state.json")
	content, _, err := s.Encode()
	must(t, err)
	must(t, safefile.Replace(path, content, 0o600))
	return path
}

func TestWhatWasWrittenIsRead(t *testing.T) {
	want := state()
	path := write(t, want)
	before := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	must(t, os.Chtimes(path, before, before))
	got, err := Read(path, "n1", origin, kinds)
	must(t, err)
	if !got.Valid.Equal(before) {
		t.Errorf("valid at %v", got.Valid)
	}
	must(t, safefile.Touch(path))
	if again, err := Read(path, "n1", origin, kinds); err != nil || time.Since(again.Valid) > time.Hour {
		t.Errorf("after Touch: %v, %v", again, err)
	}
	if !got.Written.Equal(want.Written) || got.Revision != 99 || len(got.Objects) != len(want.Objects) {
		t.Fatalf("%+v", got)
	}
	for i, o := range got.Objects {
		w := want.Objects[i]
		if m := o.Metadata(); m != nil { // the key and the revision, which the datastore sets, too
			w.Metadata().SetName(o.Key.Name)
			w.Metadata().SetNamespace(o.Key.Namespace)
			w.Metadata().SetResourceVersion(m.GetResourceVersion())
		}
		if o.Key != w.Key || o.Revision != w.Revision || !reflect.DeepEqual(o.Value, w.Value) {
			t.Errorf("%s at %d: %+v, want %+v", o.Key, o.Revision, o.Value, w.Value)
		}
	}
}

// The hash decides whether the file is written: never for a new revision, always for another object or datastore.
func TestHashFollowsTheObjects(t *testing.T) {
	hash := func(change func(*State)) any {
		s := state()
		change(s)
		_, h, err := s.Encode()
		must(t, err)
		return h
	}
	same := hash(func(*State) {})
	if hash(func(s *State) { s.Revision, s.Written, s.Objects[0].Revision = 100, time.Now(), 100 }) != same {
		t.Error("a revision changes the hash")
	}
	for name, change := range map[string]func(*State){
		"a value":   func(s *State) { s.Objects[0].Value.(*model.Node).Labels["rack"] = "b" },
		"a name":    func(s *State) { s.Objects[1].Key.Name = "q" },
		"an object": func(s *State) { s.Objects = s.Objects[1:] },
		"the node":  func(s *State) { s.Node = "n2" },
		"a server":  func(s *State) { s.Origin.Servers = s.Origin.Servers[:1] },
	} {
		if hash(change) == same {
			t.Errorf("%s does not change the hash", name)
		}
	}
}

func TestRefusedFiles(t *testing.T) {
	rewrite := func(old, new string) func(*testing.T, string) {
		return func(t *testing.T, path string) {
			content, err := os.ReadFile(path)
			must(t, err)
			lines := content[:bytes.LastIndex(content, []byte(`{"sha256"`))]
			changed := bytes.Replace(lines, []byte(old), []byte(new), 1)
			if bytes.Equal(changed, lines) {
				t.Fatalf("no %s in %s", old, lines)
			}
			must(t, os.WriteFile(path, append(changed, trailer(changed)...), 0o600))
		}
	}
	truncate := func(size int64) func(*testing.T, string) {
		return func(t *testing.T, path string) { must(t, os.Truncate(path, size)) }
	}
	instead := func(make func(path string) error) func(*testing.T, string) {
		return func(t *testing.T, path string) {
			must(t, os.Rename(path, path+".was"))
			must(t, make(path))
		}
	}
	for _, c := range []struct {
		name   string
		change func(*testing.T, string)
		want   string
	}{
		{"empty", truncate(0), "truncated"},
		{"truncated in the first line", truncate(10), "truncated"},
		{"truncated after the first line", truncate(200), "truncated"},
		{"without the last byte", func(t *testing.T, p string) {
			info, err := os.Stat(p)
			must(t, err)
			must(t, os.Truncate(p, info.Size()-1))
		}, "truncated"},
		{"something else", func(t *testing.T, p string) { must(t, os.WriteFile(p, []byte("hello\n"), 0o600)) },
			"not a file of manxd"},
		{"another format", rewrite(format, "x"), "not a file of manxd"},
		{"another version", rewrite(`"version":1`, `"version":2`), "version 2 of the format"},
		{"another node", rewrite(`"node":"n1"`, `"node":"n2"`), "of the node n2, not n1"},
		{"another type", rewrite(`"etcdv3"`, `"kubernetes"`), "of type kubernetes, not etcdv3"},
		{"other servers", rewrite(`"https://e1:2379","https://e2:2379"`, `"https://e3:2379"`), "at https://e3:2379, not"},
		{"another CA", rewrite(`["a"]`, `["b"]`), "another CA"},
		{"no CA", rewrite(`["a"]`, `[]`), "another CA"},
		{"a line that is no object", rewrite(`{"kind":"IPPool"`, `{{"kind":"IPPool"`), "without an object"},
		{"a kind that has no place", rewrite(`{"kind":"IPPool"`, `{"kind":"GlobalNetworkPolicy"`), "does not belong"},
		{"an unknown kind", rewrite(`{"kind":"IPPool"`, `{"kind":"Rocket"`), "does not belong"},
		{"too large", truncate(limit + 1), "more than"},
		{"of another user", func(t *testing.T, p string) { must(t, os.Chown(p, 65534, 65534)) }, "to user 65534"},
		{"that others can write", func(t *testing.T, p string) { must(t, os.Chmod(p, 0o622)) }, "other users could"},
		{"in a folder of another user", func(t *testing.T, p string) {
			must(t, os.Chown(filepath.Dir(p), 65534, 65534))
		}, "65534"},
		{"a link", instead(func(p string) error { return os.Symlink(p+".was", p) }), "symbolic link"},
		{"with two names", func(t *testing.T, p string) { must(t, os.Link(p, p+".other")) }, "hard links"},
		{"a pipe", instead(func(p string) error { return unix.Mkfifo(p, 0o600) }), "named pipe"},
		{"a folder", instead(func(p string) error { return os.Mkdir(p, 0o700) }), "folder"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if os.Geteuid() != 0 {
				t.Skip("needs root, to give files to another user")
			}
			path := write(t, state())
			c.change(t, path)
			if s, err := Read(path, "n1", origin, kinds); err == nil || !strings.Contains(err.Error(), c.want) ||
				!strings.Contains(err.Error(), filepath.Dir(path)) || s != nil {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
	if _, err := Read(filepath.Join(t.TempDir(), "none"), "n1", origin, kinds); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
}

// One server and one CA in common suffice: both are replaced one by one.
func TestDatastoreThatMoves(t *testing.T) {
	path := write(t, state())
	moved := Origin{Type: "etcdv3", Servers: []string{"https://e2:2379", "https://e3:2379"},
		Authorities: []string{"b", "a"}}
	if _, err := Read(path, "n1", moved, kinds); err != nil {
		t.Error(err)
	}
}

// An object that is not valid is left out, as one of the datastore is: the others count.
func TestInvalidObjectIsLeftOut(t *testing.T) {
	s := state()
	s.Objects[1].Value.(*model.IPPool).Spec.CIDR = "no address"
	got, err := Read(write(t, s), "n1", origin, kinds)
	must(t, err)
	if len(got.Objects) != len(s.Objects)-1 {
		t.Errorf("%d objects of %d", len(got.Objects), len(s.Objects))
	}
}

func TestStateTooLarge(t *testing.T) {
	s := state()
	s.Objects[0].Value.(*model.Node).Labels["large"] = strings.Repeat("x", limit)
	if _, _, err := s.Encode(); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Error(err)
	}
}

// No content of a file makes the start of the daemon fail, and a changed byte is noticed.
func FuzzDecode(f *testing.F) {
	content, _, err := state().Encode()
	if err != nil {
		f.Fatal(err)
	}
	for i := 0; i < len(content); i += 11 {
		flipped := bytes.Clone(content)
		flipped[i] ^= 1
		f.Add(flipped)
	}
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, raw []byte) {
		s, err := decode(raw, kinds)
		if (s == nil) != (err != nil) {
			t.Errorf("%v, %v", s, err)
		}
		if err == nil && len(raw) == len(content) && !bytes.Equal(raw, content) && s.Node == "n1" {
			t.Errorf("a changed file is used: %s", raw)
		}
		lines := append(bytes.TrimRight(raw, "\n"), '\n')
		_, _ = decode(append(lines, trailer(lines)...), kinds)
	})
}
