package lab

import (
	"os/exec"
	"path/filepath"
	"regexp"
)

// shared are the paths in the output of ldd(1).
var shared = regexp.MustCompile(`(?m)(/\S+) \(0x`)

// AddInstalled adds a program of this machine to the image, as /bin/NAME, with its shared libraries.
func (i Image) AddInstalled(name string) error {
	path, err := exec.LookPath(name)
	if err != nil {
		return err
	}
	if path, err = filepath.EvalSymlinks(path); err != nil {
		return err
	}
	out, err := run(nil, "ldd", path)
	if err != nil {
		return err
	}
	delete(i.Links, "/bin/"+name) // busybox's
	i.Programs["/bin/"+name] = path
	for _, m := range shared.FindAllStringSubmatch(out, -1) {
		i.Programs[m[1]] = m[1]
	}
	return nil
}
