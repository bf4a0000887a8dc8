package cni

import (
	"cmp"
	"time"

	"github.com/manxnet/manx/datastore/safefile"
)

// Log returns the log file of the configuration. Without one the path is empty.
func (c *Config) Log() safefile.LogConfig {
	return safefile.LogConfig{
		Path: c.LogFilePath, Mode: 0o600, MakeDir: true, MaxSize: int64(positive(c.LogFileMaxSize, 100)) << 20,
		MaxAge:   time.Duration(positive(c.LogFileMaxAge, 30)) * 24 * time.Hour,
		MaxFiles: positive(c.LogFileMaxN, 10),
	}
}

func positive(n, otherwise int) int { return cmp.Or(max(n, 0), otherwise) }
