package main

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore/node"
)

// Lines that are written count by their level, those of loggers with a name, too; lines below the level do not.
func TestLogLinesCount(t *testing.T) {
	lines := newLogLines()
	log, level, err := newLogger(logOptions{"warn", "json"}, lines)
	if err != nil {
		t.Fatal(err)
	}
	log.Info("not written")
	log.Named("part").Warn("written by TestLogLinesCount", zap.Error(errors.New("one")))
	level.SetLevel(zap.InfoLevel)
	log.With(zap.Int("n", 2)).Info("written by TestLogLinesCount")
	log.Info("written by TestLogLinesCount")
	const want = `
# HELP manx_log_lines_total Lines of the log, by level.
# TYPE manx_log_lines_total counter
manx_log_lines_total{level="error"} 0
manx_log_lines_total{level="info"} 2
manx_log_lines_total{level="warn"} 1
`
	if err := testutil.CollectAndCompare(lines, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}

// /dev/null is a character device and no terminal.
func TestLogFormatWithoutATerminal(t *testing.T) {
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	stderr := os.Stderr
	defer func() { os.Stderr = stderr; _ = null.Close() }()
	os.Stderr = null
	if got := logFormat(""); got != "json" {
		t.Errorf("the format is %q", got)
	}
}

func TestDrainPhaseBeforeTheFirstDrain(t *testing.T) {
	const want = `
# HELP manx_node_drain_phase 1 for the phase that the node is in, 0 for the others: in_service, draining, drained.
# TYPE manx_node_drain_phase gauge
manx_node_drain_phase{phase="drained"} 0
manx_node_drain_phase{phase="draining"} 0
manx_node_drain_phase{phase="in_service"} 1
`
	if err := testutil.CollectAndCompare(&drain{Drainer: &node.Drainer{}}, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}
