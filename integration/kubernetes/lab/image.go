package lab

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// Images that clusters use. They come from no registry.
const (
	pauseImage = "localhost/manx-lab/pause:1"
	// ToolsImage has agnhost, traffic, and busybox with all its names.
	ToolsImage = "localhost/manx-lab/tools:1"
)

// Image is the content of an image archive.
type Image struct {
	Names      []string
	Entrypoint []string
	Cmd        []string          // arguments where a pod gives none
	Programs   map[string]string // path in the image: file of this machine
	Links      map[string]string // path in the image: target
}

// Write makes an archive as `docker save` does, with one layer, in dir and returns its path.
func (i Image) Write(dir string) (string, error) {
	layer, err := os.CreateTemp(dir, "layer-")
	if err != nil {
		return "", err
	}
	defer os.Remove(layer.Name())
	defer layer.Close()
	sum := sha256.New()
	if err := i.writeLayer(io.MultiWriter(layer, sum)); err != nil {
		return "", err
	}
	size, err := layer.Seek(0, io.SeekEnd)
	if err != nil {
		return "", err
	}
	if _, err := layer.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	config, manifest, err := i.describe(fmt.Sprintf("sha256:%x", sum.Sum(nil)))
	if err != nil {
		return "", err
	}
	archive, err := os.Create(filepath.Join(dir, strings.NewReplacer("/", "-", ":", "-").Replace(i.Names[0])+".tar"))
	if err != nil {
		return "", err
	}
	defer archive.Close()
	t := tar.NewWriter(archive)
	if err := errors.Join(
		addFile(t, "config.json", 0o644, int64(len(config)), bytes.NewReader(config)),
		addFile(t, "manifest.json", 0o644, int64(len(manifest)), bytes.NewReader(manifest)),
		addFile(t, "layer.tar", 0o644, size, layer)); err != nil {
		return "", err
	}
	return archive.Name(), t.Close()
}

// describe makes the two files that describe the layer with that digest.
func (i Image) describe(digest string) (config, manifest []byte, err error) {
	config, err = json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Entrypoint": i.Entrypoint, "Cmd": i.Cmd, "Env": []string{"PATH=/:/bin"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{digest}},
	})
	if err != nil {
		return nil, nil, err
	}
	manifest, err = json.Marshal([]map[string]any{
		{"Config": "config.json", "RepoTags": i.Names, "Layers": []string{"layer.tar"}}})
	return config, manifest, err
}

func (i Image) writeLayer(w io.Writer) error {
	t := tar.NewWriter(w)
	dirs := map[string]int64{"etc": 0o755, "tmp": 0o1777}
	for _, m := range []map[string]string{i.Programs, i.Links} {
		for name := range m {
			if dir := strings.Trim(path.Dir(name), "/"); dir != "" {
				dirs[dir] = 0o755
			}
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(dirs)) {
		h := tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: dirs[dir], ModTime: time.Unix(0, 0)}
		if err := t.WriteHeader(&h); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(i.Programs)) {
		if err := addProgram(t, name, i.Programs[name]); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(i.Links)) {
		h := tar.Header{Typeflag: tar.TypeSymlink, Name: strings.TrimPrefix(name, "/"), Linkname: i.Links[name],
			Mode: 0o777}
		if err := t.WriteHeader(&h); err != nil {
			return err
		}
	}
	const users = "root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n"
	if err := addFile(t, "etc/passwd", 0o644, int64(len(users)), strings.NewReader(users)); err != nil {
		return err
	}
	return t.Close()
}

func addProgram(t *tar.Writer, name, file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	return addFile(t, strings.TrimPrefix(name, "/"), 0o755, st.Size(), f)
}

func addFile(t *tar.Writer, name string, mode, size int64, text io.Reader) error {
	if err := t.WriteHeader(&tar.Header{Name: name, Mode: mode, Size: size, ModTime: time.Unix(0, 0)}); err != nil {
		return err
	}
	_, err := io.Copy(t, text)
	return err
}

// compile builds a program of the lab, statically linked.
func (c *Cluster) compile(name string) (string, error) {
	file := filepath.Join(c.Dir, name)
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", file,
		"github.com/manxnet/manx/integration/kubernetes/"+name)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w: %s", name, err, out)
	}
	return file, nil
}

func (c *Cluster) buildPause() error {
	program, err := c.compile("pause")
	if err != nil {
		return err
	}
	c.pause, err = Image{Names: []string{pauseImage}, Entrypoint: []string{"/pause"},
		Programs: map[string]string{"/pause": program}}.Write(c.Dir)
	return err
}

// Traffic returns the path of the program traffic, for use outside the cluster.
func (c *Cluster) Traffic() string { return filepath.Join(c.Dir, "traffic") }

// Tools makes the archive of ToolsImage, which is also called by the other names.
func (c *Cluster) Tools(names ...string) (string, error) {
	image, err := c.ToolsOf(names...)
	if err != nil {
		return "", err
	}
	return image.Write(c.Dir)
}

// ToolsOf returns the content of ToolsImage.
func (c *Cluster) ToolsOf(names ...string) (Image, error) {
	if _, err := c.compile("traffic"); err != nil {
		return Image{}, err
	}
	applets, err := run(nil, busybox, "--list")
	if err != nil {
		return Image{}, err
	}
	links := map[string]string{}
	for _, applet := range strings.Fields(applets) {
		links["/bin/"+applet] = "busybox"
	}
	delete(links, "/bin/busybox")
	return Image{Names: append([]string{ToolsImage}, names...), Entrypoint: []string{"/agnhost"},
		Cmd: []string{"pause"},
		Programs: map[string]string{"/agnhost": c.Program("agnhost"), "/traffic": c.Traffic(),
			"/pause": filepath.Join(c.Dir, "pause"), "/bin/busybox": busybox}, Links: links}, nil
}
