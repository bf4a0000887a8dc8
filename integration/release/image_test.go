package release

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/integration/untar"
)

// checkProvenance checks the statement about an image, which two builds have in common, and verifies it as the document
// does: a signature with an SSH key, and the sum of the archive.
func checkProvenance(t *testing.T, one, two, digest string) {
	const archive, name = "manx-v1.2.3-amd64.tar", "manx-v1.2.3-amd64.tar.intoto.json"
	folder := filepath.Join(one, "dist")
	raw, err := os.ReadFile(filepath.Join(folder, name))
	other, otherErr := os.ReadFile(filepath.Join(two, "dist", name))
	if err != nil || otherErr != nil || !bytes.Equal(raw, other) {
		t.Fatalf("two builds have different statements: %v %v\n%s\n%s", err, otherErr, raw, other)
	}
	s := decode[struct {
		Subject []struct {
			Name   string
			Digest map[string]string
		}
		Predicate struct {
			BuildDefinition struct {
				ExternalParameters   map[string]string
				ResolvedDependencies []struct {
					Name        string
					Digest      map[string]string
					Annotations map[string]string
				}
			}
		}
	}](t, raw)
	content, err := os.ReadFile(filepath.Join(folder, archive))
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Subject) != 2 || s.Subject[0].Name != archive ||
		s.Subject[0].Digest["sha256"] != fmt.Sprintf("%x", sha256.Sum256(content)) ||
		s.Subject[1].Name != "manxnet/manx:v1.2.3" || "sha256:"+s.Subject[1].Digest["sha256"] != digest {
		t.Errorf("subjects %+v, want the archive and the image %s", s.Subject, digest)
	}
	b := s.Predicate.BuildDefinition
	if d := b.ResolvedDependencies; b.ExternalParameters["commit"] != "0123456789ab" || len(d) != 4 ||
		d[0].Digest["gitCommit"] != "0123456789ab" || d[1].Annotations["version"] != runtime.Version() {
		t.Errorf("built from %+v", b)
	}
	sh := func(command string) error {
		c := exec.Command("bash", "-euc", command)
		c.Dir = folder
		out, err := c.CombinedOutput()
		t.Logf("%s: %s", command, out)
		return err
	}
	if _, err := exec.LookPath("ssh-keygen"); err != nil {
		t.Skip(err)
	}
	const verify = `ssh-keygen -Y verify -f signers -I release -n file -s ` + name + `.sig <` + name
	if err := sh(`ssh-keygen -q -t ed25519 -N "" -f key; echo "release $(cat key.pub)" >signers;
		ssh-keygen -Y sign -f key -n file ` + name + "; " + verify); err != nil {
		t.Error(err)
	}
	if err := sh("sed -i s/0123456789ab/ba9876543210/ " + name + "; " + verify); err == nil {
		t.Error("a changed statement has a valid signature")
	}
}

// reproducible reads an archive that has neither an owner nor a time of its build.
func reproducible(t *testing.T, archive []byte) map[string][]byte {
	t.Helper()
	return untar.Files[[]byte](t, archive, func(h *tar.Header) {
		if h.Uid != 0 || h.Gid != 0 || h.ModTime.Unix() != 0 {
			t.Errorf("%s belongs to %d:%d and is of %s", h.Name, h.Uid, h.Gid, h.ModTime)
		}
	})
}

func decode[T any](t *testing.T, raw []byte) (v T) {
	t.Helper()
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatalf("%v in %q", err, raw)
	}
	return v
}

// digestOf is the digest by which the archive's index names the image.
func digestOf(t *testing.T, parts map[string][]byte) string {
	t.Helper()
	index := decode[struct{ Manifests []struct{ Digest string } }](t, parts["index.json"])
	if len(index.Manifests) != 1 {
		t.Fatalf("index.json names %d images", len(index.Manifests))
	}
	return index.Manifests[0].Digest
}

// checkDocker reads the archive as docker load does.
func checkDocker(t *testing.T, parts map[string][]byte) {
	images := decode[[]struct {
		Config   string
		RepoTags []string
		Layers   []string
	}](t, parts["manifest.json"])
	if len(images) != 1 || !slices.Equal(images[0].RepoTags, []string{"manxnet/manx:v1.2.3"}) {
		t.Fatalf("manifest.json: %+v", images)
	}
	config := decode[struct {
		Architecture string
		Config       struct {
			Entrypoint []string
			User       string
		}
		Rootfs struct {
			DiffIDs []string `json:"diff_ids"`
		}
	}](t, parts[images[0].Config])
	if config.Architecture != "amd64" || !slices.Equal(config.Config.Entrypoint, []string{"/manxd"}) ||
		len(config.Rootfs.DiffIDs) != len(images[0].Layers) {
		t.Errorf("configuration: %+v", config)
	}
	content, links := map[string][]byte{}, map[string]string{}
	for _, layer := range images[0].Layers {
		maps.Copy(content, untar.Files[[]byte](t, parts[layer], func(h *tar.Header) {
			if h.Linkname != "" {
				links["/"+h.Name] = h.Linkname
			}
		}))
		reproducible(t, parts[layer])
	}
	for at, program := range map[string]string{"/bin/calico-node": "manxctl", "/usr/bin/calico": "manxctl",
		"/opt/cni/bin/install": "manx-cni", "/usr/bin/calico-ipam": "manx-cni", "/usr/bin/check-status": "manxctl"} {
		if links[at] != "/"+program || content[program] == nil {
			t.Errorf("%s is a link to %q, want /%s", at, links[at], program)
		}
	}
	for _, program := range []string{"manxd", "manxctl", "manx-cni", "manx-cni-direct", "manx-birdsock", "gobgp"} {
		if !bytes.HasPrefix(content[program], []byte("\x7fELF")) {
			t.Errorf("/%s is no program", program)
		}
	}
	for name := range content {
		if base := filepath.Base(name); base == "sh" || base == "bash" || base == "busybox" {
			t.Errorf("there is %s", name)
		}
	}
}

// importImage has containerd import the archive, under its own name and digest, and runs a program of it.
func importImage(t *testing.T, archive, digest string) {
	for _, program := range []string{"containerd", "ctr", "runc"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%v: Debian package containerd", err)
		}
	}
	if os.Getuid() != 0 {
		t.Skip("containerd needs root")
	}
	dir := t.TempDir()
	socket := filepath.Join(dir, "containerd.sock")
	config := fmt.Sprintf("version = 2\nroot = %q\nstate = %q\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n",
		filepath.Join(dir, "root"), filepath.Join(dir, "state"))
	if err := os.WriteFile(filepath.Join(dir, "config.toml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	server := exec.Command("containerd", "--config", filepath.Join(dir, "config.toml"), "--address", socket)
	server.Stdout, server.Stderr = &log, &log
	server.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = server.Process.Signal(unix.SIGTERM)
		_ = server.Wait()
	}()
	ctr := func(args ...string) (string, error) {
		out, err := exec.Command("ctr", append([]string{"--address", socket}, args...)...).CombinedOutput()
		return string(out), err
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		if _, err := ctr("version"); err == nil {
			break
		} else if time.Now().After(end) {
			t.Fatalf("containerd does not answer: %v\n%s", err, log.String())
		}
	}
	if out, err := ctr("images", "import", archive); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	const name = "docker.io/manxnet/manx:v1.2.3"
	if out, err := ctr("images", "ls"); err != nil || !strings.Contains(out, name) || !strings.Contains(out, digest) {
		t.Fatalf("%v: no %s with %s in\n%s", err, name, digest, out)
	}
	root := filepath.Join(dir, "image")
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := ctr("images", "mount", "--snapshotter", "native", name, root); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	defer func() {
		if out, err := ctr("images", "unmount", root); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	}()
	version := exec.Command("/manxd", "--version")
	version.Dir, version.SysProcAttr = "/", &unix.SysProcAttr{Chroot: root}
	if out, err := version.CombinedOutput(); err != nil || !strings.Contains(string(out), "v1.2.3") {
		t.Errorf("%v: the program in the image prints %q", err, out)
	}
}
