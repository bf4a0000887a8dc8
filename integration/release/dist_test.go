package release

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/integration/lab"
)

const chartFile = "deploy/charts/manx/Chart.yaml"

// download fetches the modules of the tools that make packages: a machine on which no release was made lacks them.
func download(t *testing.T) {
	cmd := exec.Command("go", "mod", "download")
	cmd.Dir = "nfpm"
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go mod download in integration/release/nfpm: %v\n%s", err, out)
	}
}

// TestRelease makes a release, without a network, from two copies of the sources: an unpacked archive in a short path,
// and a git checkout in a long one. All files are the same byte for byte, and do what they are for.
func TestRelease(t *testing.T) {
	download(t)
	dir := t.TempDir()
	archive, checkout := filepath.Join(dir, "a"), filepath.Join(dir, "a longer way", "to", "the sources")
	var files [2]map[string][]byte
	for i, from := range []string{archive, checkout} {
		copySources(t, from)
		run(t, from, "make", "-s", "version", "VERSION=v1.2.3")
		if from == checkout {
			for _, args := range [][]string{{"init", "-q"}, {"add", "-A"},
				{"-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-q", "-m", "sources"}} {
				run(t, checkout, "git", args...)
			}
		}
		run(t, from, "make", "-s", "release", "VERSION=v1.2.3", "COMMIT=0123456789ab", "ARCHS=amd64", "SYSTEMS=linux")
		files[i] = readFiles(t, filepath.Join(from, "dist"))
		for _, p := range programs {
			b, err := os.ReadFile(filepath.Join(from, "bin", p))
			if at := strings.Index(string(b), dir); err != nil || at >= 0 {
				t.Errorf("%s has the path of its sources in it, or cannot be read: %v", p, err)
			}
		}
	}
	for name, b := range files[0] {
		if !bytes.Equal(b, files[1][name]) {
			t.Errorf("%s differs: %d bytes from the archive, %d from the checkout", name, len(b), len(files[1][name]))
		}
	}
	checkSums(t, filepath.Join(archive, "dist"), files[0])
	same := []string{"-s", "same-sums", "ONE=" + filepath.Join(archive, "dist"), "OTHER=dist"}
	if out, err := command(checkout, "make", same...); err != nil {
		t.Errorf("two builds have different sums: %v\n%s", err, out)
	}
	parts := reproducible(t, files[0]["manx-v1.2.3-amd64.tar"])
	t.Run("record of a program", func(t *testing.T) { checkRecord(t, filepath.Join(archive, "bin")) })
	t.Run("provenance", func(t *testing.T) { checkProvenance(t, archive, checkout, digestOf(t, parts)) })
	t.Run("docker", func(t *testing.T) { checkDocker(t, parts) })
	t.Run("containerd", func(t *testing.T) {
		importImage(t, filepath.Join(archive, "dist/manx-v1.2.3-amd64.tar"), digestOf(t, parts))
	})
	t.Run("chart and manifests", func(t *testing.T) { checkChart(t, filepath.Join(archive, "dist")) })
	t.Run("manxctl", func(t *testing.T) { checkArchive(t, filepath.Join(archive, "dist")) })
	t.Run("deb", func(t *testing.T) { checkDeb(t, filepath.Join(archive, "dist")) })
	t.Run("a changed file", func(t *testing.T) {
		err := os.WriteFile(filepath.Join(checkout, "dist/manx-crds.yaml"), []byte("other"), 0o644)
		if out, differ := command(checkout, "make", same...); err != nil || differ == nil {
			t.Errorf("it is not noticed: %v\n%s", err, out)
		}
	})
	t.Run("another version", func(t *testing.T) {
		out, err := command(archive, "make", "-s", "release", "VERSION=v1.2.4", "COMMIT=x", "-o", "sbom")
		if err == nil || !strings.Contains(out, "chart, manifests and documents name v1.2.3") {
			t.Errorf("a version that the chart does not name: %v\n%s", err, out)
		}
	})
}

func command(dir, name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func readFiles(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if files[e.Name()], err = os.ReadFile(filepath.Join(dir, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	return files
}

// checkSums: the release has each kind of file, SHA256SUMS has the sum of each, and so has the provenance.
func checkSums(t *testing.T, dist string, files map[string][]byte) {
	for _, want := range []string{"manx-1.2.3.tgz", "manx-v1.2.3-amd64.deb", "manx-v1.2.3-amd64.rpm",
		"manx-v1.2.3-amd64.tar", "manx-v1.2.3-amd64.cdx.json", "manx-v1.2.3-licenses.tar.gz",
		"manxctl-v1.2.3-linux-amd64.tar.gz", "manx-kubernetes.yaml", "manx-crds.yaml",
		"manx-v1.2.3-schemas.tar.gz", "SHA256SUMS"} {
		if len(files[want]) == 0 {
			t.Errorf("the release has no %s", want)
		}
	}
	if out, err := command(dist, "sha256sum", "--check", "--strict", "SHA256SUMS"); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	listed := strings.Count(string(files["SHA256SUMS"]), "\n")
	if listed != len(files)-1 {
		t.Errorf("SHA256SUMS has %d of %d files", listed, len(files)-1)
	}
	statement := string(files["manx-v1.2.3.intoto.json"])
	for name, b := range files {
		sum := fmt.Sprintf("%x", sha256.Sum256(b))
		if name != "SHA256SUMS" && name != "manx-v1.2.3.intoto.json" &&
			!strings.Contains(statement, fmt.Sprintf(`{"name": %q, "digest": {"sha256": %q}}`, name, sum)) {
			t.Errorf("the provenance of the release does not name %s with its sum", name)
		}
	}
}

// checkRecord compares the list of modules of a program, which is kept over builds, with a new one.
func checkRecord(t *testing.T, bin string) {
	if out, err := command(bin, "tools/cyclonedx-gomod", "bin", "-json", "-licenses", "-std", "-noserial",
		"-version", "v1.2.3", "-output", "new.json", "manx-cni"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if out, err := command(bin, "diff", "-I", `"timestamp"`, "manx-cni.cdx.json", "new.json"); err != nil {
		t.Errorf("%v:\n%s", err, out)
	}
}

// checkChart: the packaged chart and the manifests name the image that was built.
func checkChart(t *testing.T, dist string) {
	out, err := command(dist, "../bin/tools/helm", "template", "manx", "manx-1.2.3.tgz", "--namespace=kube-system")
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	manifest, err := os.ReadFile(filepath.Join(dist, "manx-kubernetes.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for what, text := range map[string]string{"chart": out, "manifest": string(manifest)} {
		images := regexp.MustCompile(`image: "?(manxnet/manx\S*?)"?\n`).FindAllStringSubmatch(text, -1)
		if len(images) == 0 || slices.ContainsFunc(images, func(m []string) bool {
			return m[1] != "manxnet/manx:v1.2.3"
		}) {
			t.Errorf("%s: images %q", what, images)
		}
	}
}

func checkArchive(t *testing.T, dist string) {
	dir := t.TempDir()
	if out, err := command(dist, "tar", "-C", dir, "-xzf", "manxctl-v1.2.3-linux-amd64.tar.gz"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if out, err := command(dir, "./manxctl", "version", "--client"); err != nil || !strings.Contains(out, "v1.2.3") {
		t.Errorf("%v: %s", err, out)
	}
	for _, name := range []string{"LICENSE", "licenses/go/LICENSE", "manxctl.cdx.json"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
}

// checkDeb installs the package on a fresh machine, as the user guide shows, upgrades, removes and purges it.
func checkDeb(t *testing.T, dist string) {
	const deb = "./manx-v1.2.3-amd64.deb"
	out, err := command(dist, "dpkg-deb", "--info", deb)
	if err != nil || !strings.Contains(out, "Version: 1.2.3\n") || !strings.Contains(out, "conffiles") {
		t.Fatalf("%v: %s", err, out)
	}
	m := freshHost(t, dist)
	sh := func(line string) string {
		t.Helper()
		out, err := m.Run("sh", "-euc", line)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	fails := func(line string) {
		t.Helper()
		if out, err := m.Run("sh", "-euc", line); err == nil {
			t.Errorf("%s: %s", line, out)
		}
	}
	out = sh("cd /mnt && apt-get install -y " + deb)
	if !strings.Contains(out, "systemctl enable --now manxd") {
		t.Errorf("the package does not tell the next step:\n%s", out)
	}
	fails("systemctl is-active manxd") // before it has settings, it would begin a cluster of its own
	fails("test -e /var/lib/manx/etcd")
	sh("test -x /opt/cni/bin/calico && id manx && test $(stat -c %U /var/lib/calico) = manx")
	sh("echo NO_DEFAULT_POOLS=true >>/etc/manx/manxd.env && systemctl enable --now manxd")
	healthy := func() error { _, err := m.Run("manxctl", "status"); return err }
	if err := lab.Eventually(time.Minute, healthy); err != nil {
		t.Fatal(err)
	}
	if out := sh("manxctl get ippools"); !strings.Contains(out, "No ippools found") {
		t.Errorf("manxd did not read /etc/manx/manxd.env: %s", out)
	}
	before := sh("systemctl show -P MainPID manxd")
	sh("cd /mnt && dpkg -i " + deb)
	if err := lab.Eventually(time.Minute, healthy); err != nil {
		t.Fatalf("after an upgrade: %v", err)
	}
	if after := sh("systemctl show -P MainPID manxd"); after == before {
		t.Error("an upgrade left the old program running")
	}
	sh("grep -q NO_DEFAULT_POOLS=true /etc/manx/manxd.env")
	sh("apt-get remove -y manx")
	fails("systemctl is-active manxd")
	fails("ls /opt/cni/bin/calico")
	sh("grep -q NO_DEFAULT_POOLS=true /etc/manx/manxd.env && test -e /var/lib/manx/etcd")
	sh("dpkg --purge manx")
	fails("ls /etc/manx/manxd.env")
}

// freshHost boots a machine that has the folder at /mnt.
func freshHost(t *testing.T, shared string) *lab.Machine {
	t.Helper()
	bin, missing := lab.Require("ip", "bird")
	if missing != nil {
		t.Skip(missing)
	}
	l, err := lab.New(lab.Spec{Name: fmt.Sprintf("d%d", os.Getpid()%1e6), Bin: bin, PlainRouters: true,
		Nodes: []lab.NodeSpec{{Name: "n1"}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	m, err := l.Nodes[0].BootFresh(shared)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// checkPrinted: programs print the version alone if somebody names it, in a release, and of the commit with its tag. A
// build of any other commit says which one.
func checkPrinted(t *testing.T, version string) {
	dir := filepath.Join(t.TempDir(), "sources")
	copySources(t, dir)
	git := func(args ...string) {
		run(t, dir, "git", append([]string{"-c", "user.name=t", "-c", "user.email=t@example.org"}, args...)...)
	}
	git("init", "-q")
	git("add", "-A")
	git("commit", "-q", "-m", "sources")
	head, err := command(dir, "git", "rev-parse", "--short=12", "HEAD")
	if err != nil {
		t.Fatal(head)
	}
	head = strings.TrimSpace(head)
	linker := regexp.MustCompile(`-X main\.version=(\S+) -X main\.buildVersion=(\S+) -X main\.commit=(\S+)'`)
	prints := func(want string, args ...string) {
		t.Helper()
		out, err := command(dir, "make", append([]string{"-n"}, args...)...)
		flags := linker.FindStringSubmatch(out)
		if err != nil || flags == nil || flags[1] != want || flags[2] != want {
			t.Errorf("make %v links %q, want %s: %v", args, flags, want, err)
		}
		image := "PRINTED='" + want + "' integration/deploy/image " + version + " "
		if slices.Contains(args, "image") && !strings.Contains(out, image) {
			t.Errorf("make %v has no %s", args, image)
		}
	}
	dev := version + "-dev+" + head
	prints(dev, "programs")
	prints(dev, "image")
	prints(version, "release")
	prints("v9.9.9", "programs", "VERSION=v9.9.9")
	out, err := command(dir, "go", "run", "-ldflags=-X main.buildVersion="+dev, "./cmd/manx-cni", "--version")
	if err != nil || out != dev+"\n" {
		t.Errorf("manx-cni prints %q: %v", out, err)
	}
	git("tag", version)
	prints(version, "programs")
	prints(version, "image")
	if err := os.WriteFile(filepath.Join(dir, "README.md"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	prints(dev+"-dirty", "programs")
	git("commit", "-q", "-a", "-m", "more")
	if head, err = command(dir, "git", "rev-parse", "--short=12", "HEAD"); err != nil {
		t.Fatal(head)
	}
	prints(version+"-dev+"+strings.TrimSpace(head), "programs")
}

// TestVersion: the version that is built without a setting is the one that chart, manifests and documents name.
func TestVersion(t *testing.T) {
	chart, err := os.ReadFile(filepath.Join(source, chartFile))
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile(`(?m)^appVersion: (v(\S+))$`).FindStringSubmatch(string(chart))
	if named == nil || !strings.Contains(string(chart), "\nversion: "+named[2]+"\n") {
		t.Fatalf("versions in\n%s", chart)
	}
	out, err := command(source, "make", "-n", "image")
	if err != nil || !strings.Contains(out, "integration/deploy/image "+named[1]+" ") {
		t.Errorf("`make image` does not build %s: %v\n%s", named[1], err, out)
	}
	t.Run("printed", func(t *testing.T) { checkPrinted(t, named[1]) })
	documents, err := filepath.Glob(filepath.Join(source, "docs/*.md"))
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, file := range append(documents, filepath.Join(source, "CONTRIBUTING.md"),
		filepath.Join(source, "deploy/manifests/manx-kubernetes.yaml")) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`\bmanx(?:ctl)?[:-](v\d+\.\d+\.\d+)|VERSION=(v\d+\.\d+\.\d+)`).FindAllStringSubmatch(
			string(text), -1) {
			found++
			if v := m[1] + m[2]; v != named[1] {
				t.Errorf("%s names %s, not %s", file, v, named[1])
			}
		}
	}
	if found < 5 {
		t.Errorf("only %d places name a version", found)
	}
}
