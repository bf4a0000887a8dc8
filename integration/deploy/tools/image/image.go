package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

type platformImage struct {
	arch string
	v1.Image
}

// seldom has the programs that rarely change. They have their own layer, which nodes keep.
var seldom = []string{"gobgp"}

// needed has the programs that an image requires.
var needed = []string{"gobgp", "manxd", "manx-supervise", "manxctl", "manx-cni", "manx-birdsock"}

// programsOf lists the programs for an architecture, by layer.
func (s settings) programsOf(arch string) (layers [2][]string, err error) {
	entries, err := os.ReadDir(filepath.Join(s.programs, arch))
	if err != nil {
		return layers, err
	}
	var found []string
	for _, e := range entries {
		name := e.Name()
		switch {
		case strings.HasSuffix(name, bomSuffix):
			continue
		case slices.Contains(seldom, name):
			layers[0] = append(layers[0], name)
		default:
			layers[1] = append(layers[1], name)
		}
		found = append(found, name)
	}
	for _, name := range needed {
		if !slices.Contains(found, name) {
			return layers, fmt.Errorf("%s is not in %s", name, filepath.Join(s.programs, arch))
		}
	}
	return layers, nil
}

// image is the image for an architecture.
func (s settings) image(arch string) (v1.Image, error) {
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	layers, err := s.programsOf(arch)
	if err != nil {
		return nil, err
	}
	var added []mutate.Addendum
	for i, programs := range layers {
		content := &files{created: s.created}
		for _, name := range programs {
			if err := content.file(filepath.Join(s.programs, arch, name), name, 0o755); err != nil {
				return nil, err
			}
		}
		if i == 0 {
			if err := content.base(s.licenses); err != nil {
				return nil, err
			}
		} else if err := content.links(s.links); err != nil {
			return nil, err
		}
		layer, err := content.layer()
		if err != nil {
			return nil, err
		}
		added = append(added, mutate.Addendum{Layer: layer, History: v1.History{
			Created: v1.Time{Time: s.created}, CreatedBy: "make image"}})
	}
	image, err := mutate.Append(base, added...)
	if err != nil {
		return nil, err
	}
	file, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	file.Architecture, file.OS, file.Created = arch, "linux", v1.Time{Time: s.created}
	file.Config = v1.Config{
		Entrypoint: []string{"/manxd"}, Env: []string{"PATH=/:/usr/bin:/bin:/sbin"}, User: "0:0", WorkingDir: "/",
		Labels: map[string]string{
			"org.opencontainers.image.title":    "manx",
			"org.opencontainers.image.version":  s.version,
			"org.opencontainers.image.revision": s.commit,
			"org.opencontainers.image.source":   "https://github.com/manxnet/manx",
			"org.opencontainers.image.licenses": "Apache-2.0",
		},
	}
	return mutate.ConfigFile(image, file)
}

// files collects the content of a layer: root owns everything, and nothing is newer than the sources.
type files struct {
	bytes.Buffer
	created time.Time
	archive *tar.Writer
}

func (f *files) add(h tar.Header, content []byte) error {
	if f.archive == nil {
		f.archive = tar.NewWriter(&f.Buffer)
	}
	h.Format, h.ModTime, h.Size = tar.FormatPAX, f.created, int64(len(content))
	if f.created.IsZero() {
		h.ModTime = time.Unix(0, 0)
	}
	if err := f.archive.WriteHeader(&h); err != nil {
		return err
	}
	_, err := f.archive.Write(content)
	return err
}

func (f *files) file(from, name string, mode int64) error {
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return f.add(tar.Header{Name: name, Mode: mode, Typeflag: tar.TypeReg}, content)
}

func (f *files) folder(name string, mode int64) error {
	return f.add(tar.Header{Name: name + "/", Mode: mode, Typeflag: tar.TypeDir}, nil)
}

// links adds symbolic links, of a file with lines PATH TARGET, and their folders.
func (f *files) links(from string) error {
	if from == "" {
		return nil
	}
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	made := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		at, target, _ := strings.Cut(strings.TrimSpace(line), " ")
		at = strings.TrimPrefix(at, "/")
		folders := strings.Split(path.Dir(at), "/")
		for i := range folders {
			if name := path.Join(folders[:i+1]...); !made[name] {
				made[name] = true
				if err := f.folder(name, 0o755); err != nil {
					return err
				}
			}
		}
		h := tar.Header{Name: at, Linkname: target, Mode: 0o777, Typeflag: tar.TypeSymlink}
		if err := f.add(h, nil); err != nil {
			return err
		}
	}
	return nil
}

// base adds the files that runtimes need, and the licences of the image's content.
func (f *files) base(licenses string) error {
	if err := f.folder("etc", 0o755); err != nil {
		return err
	}
	passwd := tar.Header{Name: "etc/passwd", Mode: 0o644, Typeflag: tar.TypeReg}
	if err := f.add(passwd, []byte("root:x:0:0:root:/:/nologin\n")); err != nil {
		return err
	}
	if licenses == "" {
		return nil
	}
	return filepath.WalkDir(licenses, func(from string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(licenses, from)
		if err != nil {
			return err
		}
		name = path.Join("licenses", filepath.ToSlash(name))
		if d.IsDir() {
			return f.folder(name, 0o755)
		}
		return f.file(from, name, 0o644)
	})
}

// layer returns the collected files as a layer.
func (f *files) layer() (v1.Layer, error) {
	if err := f.archive.Close(); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(f.Bytes())), nil
	}, tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
}
