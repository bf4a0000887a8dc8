package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
)

// journal keeps the results of tests with an image of Manx, so that a run that was ended early can be resumed.
type journal struct {
	path        string
	mu          sync.Mutex
	journalFile journalFile
}

// journalFile is the content of the journal's file.
type journalFile struct {
	Manx    string
	Results map[string]entry // by the name of the test
}

// entry is a result.
type entry struct{ Outcome, Why string }

// notYet is why a test without a result has not run.
const notYet = "no run has come to it yet"

// openJournal reads the journal if the run is to be resumed and the journal is about the same image.
func openJournal(path, manx string, resume bool) (*journal, error) {
	j := &journal{path: path}
	text, err := os.ReadFile(path)
	switch {
	case !resume || errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	default:
		if err := json.Unmarshal(text, &j.journalFile); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	if j.journalFile.Manx != manx || j.journalFile.Results == nil {
		j.journalFile = journalFile{Manx: manx, Results: map[string]entry{}}
	}
	return j, nil
}

// result returns the result of a test in the journal; a test without a result has not run.
func (j *journal) result(name string) result {
	j.mu.Lock()
	defer j.mu.Unlock()
	e, ok := j.journalFile.Results[name]
	if !ok {
		e = entry{"not run", notYet}
	}
	return result{name: shortName(name), outcome: e.Outcome, why: e.Why}
}

// add records the result of a test.
func (j *journal) add(name string, r result) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.journalFile.Results[name] = entry{r.outcome, r.why}
	text, err := json.MarshalIndent(j.journalFile, "", " ")
	if err != nil {
		return err
	}
	// A run can be ended at any moment; its results so far are kept.
	beside := j.path + ".new"
	if err := os.WriteFile(beside, text, 0o644); err != nil {
		return err
	}
	return os.Rename(beside, j.path)
}
