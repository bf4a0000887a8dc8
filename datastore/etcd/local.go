package etcd

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/safefile"
)

// localName is the file in manxd's run directory in which it says how it reaches the datastore, so that the other
// programs of this host need no settings.
const localName = "datastore.json"

// ErrNoLocal is the error of ReadLocal if no manxd has left word.
var ErrNoLocal = errors.New("no manxd has said how it reaches the datastore")

// local is the content of the file. It holds no secret, only the names of files that do.
type local struct {
	Endpoints    []string `json:"endpoints"`
	CAFile       string   `json:"caFile,omitempty"`
	CertFile     string   `json:"certFile,omitempty"`
	KeyFile      string   `json:"keyFile,omitempty"`
	Username     string   `json:"username,omitempty"`
	PasswordFile string   `json:"passwordFile,omitempty"`
}

// WriteLocal tells the other programs of this host how to reach the datastore, in manxd's run directory. A password
// that is in no file stays out of it.
func WriteLocal(runDir string, c Config) error {
	l := local{Endpoints: c.Endpoints,
		CAFile: absolute(c.CAFile), CertFile: absolute(c.CertFile), KeyFile: absolute(c.KeyFile)}
	if c.PasswordFile != "" {
		l.Username, l.PasswordFile = c.Username, absolute(c.PasswordFile)
	}
	content, err := json.Marshal(l)
	if err != nil {
		return err
	}
	return safefile.Replace(filepath.Join(runDir, localName), append(content, '\n'), 0o600)
}

// ReadLocal is how the manxd with that run directory reaches the datastore, as the user of set if it has one.
func ReadLocal(runDir string, set Config) (Config, error) {
	file := filepath.Join(runDir, localName)
	content, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return Config{}, fmt.Errorf("%w: there is no %s", ErrNoLocal, file)
	}
	if err != nil {
		return Config{}, err
	}
	var l local
	if err := json.Unmarshal(content, &l); err != nil { // fields that a newer manxd adds are no error
		return Config{}, fmt.Errorf("%s: %w", file, err)
	}
	c := Config{Endpoints: l.Endpoints, CAFile: l.CAFile, CertFile: l.CertFile, KeyFile: l.KeyFile,
		Username: l.Username, PasswordFile: l.PasswordFile}
	if set.Username != "" {
		c.Username, c.Password, c.PasswordFile = set.Username, set.Password, set.PasswordFile
	}
	return c, nil
}

// absolute makes a path mean the same in other working directories.
func absolute(path string) string {
	if path == "" {
		return ""
	}
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}

// HintLocal explains an error of Open if c has the address where older versions of manxd served their embedded
// datastore, and the local manxd serves its datastore elsewhere now. It returns any other error as it is.
func HintLocal(err error, c Config, runDir string) error {
	if !errors.Is(err, datastore.ErrUnavailable) || len(c.Endpoints) != 1 {
		return err
	}
	if _, address := splitEndpoint(c.Endpoints[0]); address != oldListen {
		return err
	}
	now, localErr := ReadLocal(runDir, Config{})
	if localErr != nil || len(now.Endpoints) == 0 || now.Endpoints[0] == c.Endpoints[0] {
		return err
	}
	return fmt.Errorf("%w. The local manxd does not serve its datastore there any more: "+
		"leave the endpoint out to use the manxd's own", err)
}

// oldListen is the address of the embedded datastore in versions that served it to every user of the host.
const oldListen = "127.0.0.1:2379"
