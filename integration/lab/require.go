package lab

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/manxnet/manx/integration/peers"
)

// Require returns the folder of the built programs, or the reason why a lab with them cannot run here: no root, a
// missing program, an unsupported version of a program, or no built programs.
func Require(programs ...string) (bin string, missing error) {
	if os.Geteuid() != 0 {
		return "", errors.New("network namespaces need root")
	}
	for _, program := range programs {
		if err := peers.Usable(program); err != nil {
			return "", err
		}
	}
	bin, err := binaries()
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(filepath.Join(bin, "manxd")); err != nil {
		return "", errors.New("bin/manxd is not built: run `make build`")
	}
	return bin, nil
}

// binaries is $MANX_BIN, else the folder bin of the repository that the working directory is in.
func binaries() (string, error) {
	if bin := os.Getenv("MANX_BIN"); bin != "" {
		return filepath.Abs(bin)
	}
	dir, err := os.Getwd()
	for ; err == nil; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return filepath.Join(dir, "bin"), nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("no go.mod above the working directory: say with MANX_BIN where the programs are")
		}
	}
	return "", err
}
