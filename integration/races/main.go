// Command races classifies the reports of Go's race detector. A report about GoBGP only, or about GoBGP and a library
// whose data it changes while others read them, is counted if it is on the list known.txt. Every other report is an
// error.
//
//	races FOLDER   classifies the files in FOLDER, which GORACE=log_path=FOLDER/report has filled
package main

import (
	_ "embed"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// known has one function of GoBGP on each line, as report.go shortens it, and comments that begin with #. Behind the
// function stands the library that it races with, if that is not GoBGP, or the function.
//
//go:embed known.txt
var known string

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: races FOLDER")
		os.Exit(2)
	}
	reports, err := readReports(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, "races:", err)
		os.Exit(2)
	}
	if !compare(os.Stdout, reports, functions(known)) {
		os.Exit(1)
	}
}

// readReports returns the reports of all processes that wrote into folder.
func readReports(folder string) ([]report, error) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, err
	}
	var reports []report
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(folder, e.Name()))
		if err != nil {
			return nil, err
		}
		found := parse(string(text))
		if len(found) == 0 { // the detector has written there why it could not go on
			return nil, fmt.Errorf("%s has no report of a race:\n%s", e.Name(), text)
		}
		reports = append(reports, found...)
	}
	return reports, nil
}

// functions returns the entries of a list without comments.
func functions(list string) (names []string) {
	for line := range strings.Lines(list) {
		line, _, _ = strings.Cut(line, "#")
		if line = strings.TrimSpace(line); line != "" {
			names = append(names, line)
		}
	}
	return names
}

// isKnown reports whether an entry of the list is about a race of these functions. ours reports whether a function
// outside GoBGP is on their stacks: that is so for a library, which has a caller, and the one access has to be the
// library's. An entry with two functions is about these two, whoever calls them.
func isKnown(entry string, names []string, ours bool) bool {
	function, library, _ := strings.Cut(entry, " ")
	if !slices.Contains(names, function) {
		return false
	}
	if library == "" {
		return !ours
	}
	return slices.ContainsFunc(names, func(name string) bool {
		return name == library || strings.HasPrefix(name, library+".")
	})
}

// compare prints the reports and returns whether all of them are known: races of GoBGP alone, with a known function on
// one side, and those of a known function with its library.
func compare(w io.Writer, reports []report, known []string) bool {
	seen, unknown := map[string]int{}, map[string]int{}
	for _, r := range reports {
		names, ours := r.accessFunctions()
		if i := slices.IndexFunc(known, func(entry string) bool { return isKnown(entry, names, ours) }); i >= 0 {
			seen[known[i]]++
			continue
		}
		key := strings.Join(names, " and ")
		if unknown[key]++; unknown[key] == 1 {
			fmt.Fprintf(w, "%s\n", r.text)
		}
	}
	var rare []string
	for _, name := range known {
		if n := seen[name]; n > 0 {
			fmt.Fprintf(w, "known data race of GoBGP: %s (%d reports)\n", name, n)
		} else {
			rare = append(rare, name)
		}
	}
	if len(rare) > 0 {
		fmt.Fprintf(w, "known, but not seen in this run (integration/races/known.txt is to shrink): %s\n",
			strings.Join(rare, ", "))
	}
	for _, key := range slices.Sorted(maps.Keys(unknown)) {
		fmt.Fprintf(w, "DATA RACE: %s (%d reports, the first is above)\n", key, unknown[key])
	}
	return len(unknown) == 0
}
