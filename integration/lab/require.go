package lab

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Require returns the folder of the built programs ($MANX_BIN, else bin/ as seen from a folder below integration), or
// why a test or benchmark that runs them in a lab cannot run here: no root, a program is not installed or nothing is
// built.
func Require(programs ...string) (bin string, missing error) {
	if os.Geteuid() != 0 {
		return "", errors.New("network namespaces need root")
	}
	for _, program := range programs {
		if _, err := exec.LookPath(program); err != nil {
			return "", fmt.Errorf("%s is not installed", program)
		}
	}
	bin, err := filepath.Abs(cmp.Or(os.Getenv("MANX_BIN"), "../../bin"))
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(filepath.Join(bin, "manxd")); err != nil {
		return "", errors.New("bin/manxd is not built: run `make build`")
	}
	return bin, nil
}
