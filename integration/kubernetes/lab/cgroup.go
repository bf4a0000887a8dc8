package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	hosts "github.com/manxnet/manx/integration/lab"
)

const cgroupRoot = "/sys/fs/cgroup"

// cgroup is the name of the node's groups.
func (n *Node) cgroup() string { return fmt.Sprintf("%s%d-%s", cgroupPrefix, os.Getpid(), n.Namespace) }

const cgroupPrefix = "manx-kubernetes-"

// unified reports whether this machine has cgroups of version 2 alone.
func unified() bool { return exists(filepath.Join(cgroupRoot, "cgroup.controllers")) }

// hierarchies are the folders in which a node needs a group: one, or with cgroups of version 1 one for each controller.
func hierarchies() ([]string, error) {
	if unified() {
		return []string{cgroupRoot}, nil
	}
	entries, err := os.ReadDir(cgroupRoot)
	if err != nil {
		return nil, err
	}
	var dirs []string
	for _, e := range entries {
		dir := filepath.Join(cgroupRoot, e.Name())
		if e.IsDir() && exists(filepath.Join(dir, "cgroup.procs")) { // symbolic links are other names of controllers
			dirs = append(dirs, dir)
		}
	}
	if len(dirs) == 0 {
		return nil, errors.New("no cgroups are mounted in " + cgroupRoot)
	}
	return dirs, nil
}

// makeCgroups makes a group in each hierarchy and returns the folders.
func makeCgroups(name string) ([]string, error) {
	parents, err := hierarchies()
	if err != nil {
		return nil, err
	}
	if unified() {
		if err := allowControllers(cgroupRoot); err != nil {
			return nil, err
		}
	}
	var groups []string
	for _, parent := range parents {
		group := filepath.Join(parent, name)
		if err := os.Mkdir(group, 0o755); err != nil && !os.IsExist(err) {
			return nil, err
		}
		// A new group of cpuset has no processors.
		for _, f := range []string{"cpuset.cpus", "cpuset.mems"} {
			if !unified() && exists(filepath.Join(parent, f)) {
				value, err := os.ReadFile(filepath.Join(parent, f))
				if err != nil {
					return nil, err
				}
				if err := os.WriteFile(filepath.Join(group, f), value, 0); err != nil {
					return nil, err
				}
			}
		}
		groups = append(groups, group)
	}
	return groups, nil
}

// allowControllers enables the controllers that kubelets need in the groups below the folder.
func allowControllers(group string) error {
	return os.WriteFile(filepath.Join(group, "cgroup.subtree_control"), []byte("+cpu +cpuset +memory +pids +io"), 0)
}

// delegateCgroup moves all processes of a group into a leaf, because in version 2 a group with processes cannot have
// groups with controllers below it. The kubelet makes those.
func delegateCgroup(name string) error {
	if !unified() {
		return nil
	}
	group := filepath.Join(cgroupRoot, name)
	leaf := filepath.Join(group, "init")
	if err := os.Mkdir(leaf, 0o755); err != nil && !os.IsExist(err) {
		return err
	}
	pids, err := os.ReadFile(filepath.Join(group, "cgroup.procs"))
	if err != nil {
		return err
	}
	for _, pid := range strings.Fields(string(pids)) {
		err := os.WriteFile(filepath.Join(leaf, "cgroup.procs"), []byte(pid), 0)
		if err != nil && !errors.Is(err, syscall.ESRCH) { // it has ended
			return err
		}
	}
	return allowControllers(group)
}

// removeCgroups removes the groups of a node that is off.
func (n *Node) removeCgroups() error {
	dirs, err := hierarchies()
	if err != nil {
		return err
	}
	var errs []error
	for _, dir := range dirs {
		errs = append(errs, removeTree(filepath.Join(dir, n.cgroup())))
	}
	return errors.Join(errs...)
}

// removeCgroups removes the groups of killed runs. Groups with processes stay: they belong to another run. The run of
// process ended is over, although the process still exists.
func removeCgroups(ended int) {
	dirs, err := hierarchies()
	if err != nil {
		return
	}
	for _, dir := range dirs {
		left, _ := filepath.Glob(filepath.Join(dir, cgroupPrefix+"*"))
		for _, group := range left {
			var pid int
			_, err := fmt.Sscanf(filepath.Base(group), cgroupPrefix+"%d-", &pid)
			if err != nil || pid != ended && syscall.Kill(pid, 0) == nil {
				continue
			}
			_ = removeTree(group) // the next run tries again
		}
	}
}

// removeTree removes a group and the groups below it, the deepest first.
func removeTree(group string) error {
	var groups []string
	err := filepath.WalkDir(group, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.IsDir() {
			groups = append(groups, path)
		}
		return nil
	})
	slices.Reverse(groups)
	for _, g := range groups {
		// The kernel takes a moment to forget processes that were killed.
		err = errors.Join(err, hosts.Eventually(10*time.Second, func() error {
			if e := syscall.Rmdir(g); e != nil && !errors.Is(e, syscall.ENOENT) {
				return fmt.Errorf("remove %s: %w", g, e)
			}
			return nil
		}))
	}
	return err
}
