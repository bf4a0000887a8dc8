package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
)

// journal keeps which tests passed with an image of Manx, so that a run that was ended early can be resumed.
type journal struct {
	path string
	mu   sync.Mutex
	kept kept
}

// kept is the journal's file.
type kept struct {
	Manx   string
	Passed map[string]bool
}

// openJournal reads the journal if the run is to be resumed, and it is about the same image.
func openJournal(path, manx string, resume bool) (*journal, error) {
	j := &journal{path: path}
	text, err := os.ReadFile(path)
	switch {
	case !resume || errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	default:
		if err := json.Unmarshal(text, &j.kept); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	if j.kept.Manx != manx || j.kept.Passed == nil {
		j.kept = kept{Manx: manx, Passed: map[string]bool{}}
	}
	return j, nil
}

func (j *journal) passed(name string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.kept.Passed[name]
}

// add writes down a test that passed.
func (j *journal) add(name string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.kept.Passed[name] = true
	text, err := json.MarshalIndent(j.kept, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(j.path, text, 0o644)
}
