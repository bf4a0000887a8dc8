package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/manxnet/manx/datastore/safefile"
)

// private fails if others than the owner can enter the folder, or if its owner is neither this user nor root. Root may
// read the folder of any user.
func private(dir string) error {
	st, err := os.Stat(dir)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("%w in %s", ErrMissing, dir)
		}
		return err
	}
	owner, me := st.Sys().(*syscall.Stat_t).Uid, uint32(os.Geteuid())
	if mode := st.Mode().Perm(); mode&0o077 != 0 || me != 0 && owner != me && owner != 0 {
		return fmt.Errorf("others can enter the folder %s (mode %#o, owner uid %d): "+
			"want mode 0700 and this user or root as the owner", dir, mode, owner)
	}
	return nil
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// decode reads a file with one PEM block of that kind.
func decode(file, kind string) ([]byte, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(content)
	if block == nil || block.Type != kind {
		return nil, fmt.Errorf("%s holds no PEM block %s", file, kind)
	}
	return block.Bytes, nil
}

func readCert(file string) (*x509.Certificate, error) {
	der, err := decode(file, "CERTIFICATE")
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return cert, nil
}

func readKey(file string) (*ecdsa.PrivateKey, error) {
	der, err := decode(file, "PRIVATE KEY")
	if err != nil {
		return nil, err
	}
	key, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	private, ok := key.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("%s holds a %T: want an ECDSA key", file, key)
	}
	return private, nil
}

func newKey(file string) (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return key, writeFile(file, encode("PRIVATE KEY", der))
}

// writeFile replaces a file atomically, also on a loss of power. Only the owner can read it.
func writeFile(file string, content []byte) error { return safefile.Replace(file, content, 0o600) }
