package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// archive is a tar file in the OCI image layout.
type archive struct {
	*tar.Writer
	have map[v1.Hash]bool
}

func (a *archive) file(name string, content []byte) error {
	h := &tar.Header{Name: name, Mode: 0o644, Size: int64(len(content)), ModTime: time.Unix(0, 0),
		Typeflag: tar.TypeReg}
	if err := a.WriteHeader(h); err != nil {
		return err
	}
	_, err := a.Write(content)
	return err
}

func blob(h v1.Hash) string { return "blobs/" + h.Algorithm + "/" + h.Hex }

// blob adds content under its digest, once.
func (a *archive) blob(content []byte) (v1.Hash, error) {
	h, _, err := v1.SHA256(bytes.NewReader(content))
	if err != nil || a.have[h] {
		return h, err
	}
	a.have[h] = true
	return h, a.file(blob(h), content)
}

// loadable is an image in manifest.json, for docker load.
type loadable struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// image adds the blobs of an image.
func (a *archive) image(image platformImage) (v1.Descriptor, loadable, error) {
	var l loadable
	config, err := image.RawConfigFile()
	if err != nil {
		return v1.Descriptor{}, l, err
	}
	h, err := a.blob(config)
	if err != nil {
		return v1.Descriptor{}, l, err
	}
	l.Config = blob(h)
	all, err := image.Layers()
	if err != nil {
		return v1.Descriptor{}, l, err
	}
	for _, layer := range all {
		r, err := layer.Compressed()
		if err != nil {
			return v1.Descriptor{}, l, err
		}
		content, err := io.ReadAll(r)
		if err = errors.Join(err, r.Close()); err != nil {
			return v1.Descriptor{}, l, err
		}
		if h, err = a.blob(content); err != nil {
			return v1.Descriptor{}, l, err
		}
		l.Layers = append(l.Layers, blob(h))
	}
	manifest, err := image.RawManifest()
	if err != nil {
		return v1.Descriptor{}, l, err
	}
	h, err = a.blob(manifest)
	return v1.Descriptor{MediaType: types.OCIManifestSchema1, Size: int64(len(manifest)), Digest: h,
		Platform: &v1.Platform{OS: "linux", Architecture: image.arch}}, l, err
}

// writeArchive writes images of several architectures under one name, and returns the digest that the name has in the
// end.
func writeArchive(to, name, version string, images []platformImage) (digest v1.Hash, err error) {
	f, err := os.Create(to + ".new")
	if err != nil {
		return digest, err
	}
	defer func() {
		if err = errors.Join(err, f.Close()); err == nil {
			err = os.Rename(to+".new", to)
		}
	}()
	a := &archive{tar.NewWriter(f), map[v1.Hash]bool{}}
	if err := a.file("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)); err != nil {
		return digest, err
	}
	index := v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex}
	var docker loadable
	for _, image := range images {
		d, l, err := a.image(image)
		if err != nil {
			return digest, err
		}
		index.Manifests, docker = append(index.Manifests, d), l
	}
	top := index.Manifests[0]
	if len(images) > 1 {
		raw, err := json.Marshal(index)
		if err != nil {
			return digest, err
		}
		h, err := a.blob(raw)
		if err != nil {
			return digest, err
		}
		top = v1.Descriptor{MediaType: types.OCIImageIndex, Size: int64(len(raw)), Digest: h}
	} else {
		docker.RepoTags = []string{name + ":" + version}
		raw, err := json.Marshal([]loadable{docker})
		if err != nil {
			return digest, err
		}
		if err := a.file("manifest.json", raw); err != nil {
			return digest, err
		}
	}
	return top.Digest, a.finish(top, name, version)
}

// finish names the content of the archive, in the form for containerd and others.
func (a *archive) finish(top v1.Descriptor, name, version string) error {
	top.Annotations = map[string]string{
		"io.containerd.image.name":          "docker.io/" + name + ":" + version,
		"org.opencontainers.image.ref.name": version,
	}
	raw, err := json.Marshal(v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex,
		Manifests: []v1.Descriptor{top}})
	if err != nil {
		return err
	}
	if err := a.file("index.json", raw); err != nil {
		return err
	}
	return a.Close()
}
