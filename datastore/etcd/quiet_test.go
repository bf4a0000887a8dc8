package etcd_test

import (
	"bytes"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/manxnet/manx/datastore/etcd"
	"github.com/manxnet/manx/datastore/etcd/embedded"
)

// A server that starts, serves and is closed logs nothing, at any level.
func TestEmbeddedSaysNothingWhenAllIsWell(t *testing.T) {
	pki := newPKI(t)
	plain := embedded.Config{Insecure: true}
	for name, c := range map[string]struct {
		config embedded.Config
		start  zapcore.Level
	}{
		"debug":  {plain, zap.DebugLevel},
		"error":  {plain, zap.ErrorLevel},
		"fatal":  {plain, zap.FatalLevel},
		"own CA": {embedded.Config{}, zap.DebugLevel},
		"TLS":    {embedded.Config{CertFile: pki.server.cert, KeyFile: pki.server.key, CAFile: pki.ca}, zap.DebugLevel},
	} {
		t.Run(name, func(t *testing.T) {
			level := zap.NewAtomicLevelAt(c.start)
			core, log := observer.New(level)
			var complaints bytes.Buffer
			logger := zap.New(core, zap.ErrorOutput(zapcore.AddSync(&complaints)))

			c.config.DataDir, c.config.Listen, c.config.MinFreeBytes = t.TempDir(), "127.0.0.1:0", 1
			e, err := embedded.Start(t.Context(), c.config, logger)
			if err != nil {
				t.Fatal(err)
			}
			level.SetLevel(zap.DebugLevel)
			s, err := etcd.Open(t.Context(), e.Config(), logger)
			if err != nil {
				t.Fatal(err)
			}
			create(t, s, peer("a", "10.0.0.1"))
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			if err := e.Close(); err != nil {
				t.Error(err)
			}
			time.Sleep(10 * time.Millisecond) // etcd's serving goroutines may log their end a moment later
			for _, entry := range log.All() {
				t.Error("the log has:", entry.Level, entry.LoggerName, entry.Message)
			}
			if complaints.Len() > 0 {
				t.Error("the logger complains:", complaints.String())
			}
		})
	}
}
