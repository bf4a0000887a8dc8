package endpointstatus

import (
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"
)

type folder struct {
	*testing.T
	path string
	now  time.Time
}

func newFolder(t *testing.T) *folder {
	return &folder{t, filepath.Join(t.TempDir(), "calico", FolderName), time.Unix(1000, 0)}
}

func (f *folder) target() *target { return newTarget(f.path, func() time.Time { return f.now }) }

func (f *folder) flush(t *target, wantSteps int) {
	f.Helper()
	if steps, failures, err := t.Flush(); steps != wantSteps || failures != 0 || err != nil {
		f.Fatalf("%d steps, %d failures, %v; want %d steps", steps, failures, err, wantSteps)
	}
}

func (f *folder) put(name, content string) {
	f.Helper()
	if err := os.MkdirAll(f.path, 0o755); err != nil {
		f.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(f.path, name), []byte(content), 0o644); err != nil {
		f.Fatal(err)
	}
}

func (f *folder) want(files map[string]string) {
	f.Helper()
	have := map[string]string{}
	entries, _ := os.ReadDir(f.path)
	for _, e := range entries {
		content, err := os.ReadFile(filepath.Join(f.path, e.Name()))
		if err != nil {
			f.Fatal(err)
		}
		have[e.Name()] = string(content)
	}
	if !maps.Equal(have, files) {
		f.Fatalf("files are %q, want %q", have, files)
	}
}

const (
	web, db = "k8s shop%2Fweb eth0", "k8s shop%2Fdb eth0"
	one     = `{"ifaceName":"cali1"}`
	two     = `{"ifaceName":"cali2"}`
)

func TestFilesComeChangeAndGo(t *testing.T) {
	f := newFolder(t)
	target := f.target()
	f.flush(target, 0) // the folder does not exist
	target.Set(map[string]string{web: one, db: two})
	f.flush(target, 2)
	f.want(map[string]string{web: one, db: two})
	f.flush(target, 0)
	target.Set(map[string]string{web: two})
	f.flush(target, 2)
	f.want(map[string]string{web: two})
}

// Files of an earlier run stay as long as they may still be correct, so that a plugin does not wait longer.
func TestFilesOfAnEarlierRunAreReusedOrRemovedOnceInSync(t *testing.T) {
	f := newFolder(t)
	f.put(web, one)
	f.put(db, two)
	f.put("README", "somebody's")
	before, _ := os.Stat(filepath.Join(f.path, web))
	target := f.target()
	target.Set(map[string]string{web: one})
	f.flush(target, 0)
	f.want(map[string]string{web: one, db: two, "README": "somebody's"})
	target.Synced(true)
	f.flush(target, 1)
	f.want(map[string]string{web: one, "README": "somebody's"})
	if after, _ := os.Stat(filepath.Join(f.path, web)); !os.SameFile(before, after) {
		t.Error("a file that was right has been written again")
	}
}

func TestFilesThatOthersRemoveComeBack(t *testing.T) {
	f := newFolder(t)
	target := f.target()
	target.Set(map[string]string{web: one})
	f.flush(target, 1)
	if err := os.RemoveAll(f.path); err != nil {
		t.Fatal(err)
	}
	f.flush(target, 0) // it is not read continuously
	f.now = f.now.Add(checkEvery)
	f.flush(target, 1)
	f.want(map[string]string{web: one})
	if list, _ := target.Repairs(); len(list) != 1 || list[0].Key != web {
		t.Errorf("repairs are %v", list)
	}
}

func TestAFolderThatCannotBeMadeIsReportedAndTriedAgain(t *testing.T) {
	f := newFolder(t)
	parent := filepath.Dir(f.path)
	if err := os.WriteFile(parent, nil, 0o644); err != nil { // a file in the place of a folder
		t.Fatal(err)
	}
	target := f.target()
	target.Set(map[string]string{web: one})
	if _, _, err := target.Flush(); err == nil {
		if target.Health().Problem == nil {
			t.Fatal("nothing is reported")
		}
	}
	if err := os.Remove(parent); err != nil {
		t.Fatal(err)
	}
	f.now = f.now.Add(target.Next())
	f.flush(target, 1)
	f.want(map[string]string{web: one})
}

func TestCleanupRemovesTheFilesOnly(t *testing.T) {
	f := newFolder(t)
	f.put(web, one)
	f.put("README", "somebody's")
	if n, err := Cleanup(f.path); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	f.want(map[string]string{"README": "somebody's"})
	if err := os.Remove(filepath.Join(f.path, "README")); err != nil {
		t.Fatal(err)
	}
	for range 2 { // also of missing ones
		if n, err := Cleanup(f.path); n != 0 || err != nil {
			t.Fatal(n, err)
		}
		if _, err := os.Stat(f.path); err == nil {
			t.Fatal("the empty folder is still there")
		}
	}
}
