package lab

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Version of Kubernetes in the cache. It is the one of integration/kubernetes/programs/go.mod; a test compares them.
const Version = "v1.32.0"

// Programs is the cache folder that `make kubernetes-programs` fills.
func Programs() (string, error) {
	dir := os.Getenv("MANX_CACHE")
	if dir == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			return "", err
		}
		dir = filepath.Join(cache, "manx")
	}
	return filepath.Join(dir, "kubernetes-"+Version), nil
}

// needed has the programs of Kubernetes that a cluster needs.
var needed = []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl",
	"agnhost", "coredns"}

// debianPrograms has the programs of Debian that a cluster needs, with their packages where the names differ.
var debianPrograms = map[string]string{"ip": "iproute2", "ping": "iputils-ping", "nft": "nftables", "bird": "bird2",
	"etcd": "etcd-server", "containerd": "", "runc": "", "iptables": "", "conntrack": "", busybox: "busybox-static"}

const busybox = "/usr/bin/busybox"

// Require returns the folder of Kubernetes' programs, or the reason why a cluster cannot run here.
func Require(more ...string) (programs string, missing error) {
	if os.Geteuid() != 0 {
		return "", errors.New("clusters in namespaces need root")
	}
	if missing := installed(); missing != nil {
		return "", missing
	}
	programs, err := Programs()
	if err != nil {
		return "", err
	}
	for _, program := range append(more, needed...) {
		if _, err := os.Stat(filepath.Join(programs, program)); err != nil {
			return "", fmt.Errorf("%s is not in %s: run `make kubernetes-programs` (some ten minutes, once)", program,
				programs)
		}
	}
	return programs, nil
}

// installed names a package of Debian that is missing.
func installed() error {
	for program, pkg := range debianPrograms {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("package %s of Debian is not installed", cmp.Or(pkg, program))
		}
	}
	return nil
}
