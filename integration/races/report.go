package main

import (
	"regexp"
	"slices"
	"strings"
)

// report is one report of the race detector.
type report struct {
	text     string
	accesses [][]string // the stacks of the accesses that race, innermost function first
}

// parse finds the reports in the output of the race detector.
func parse(text string) (reports []report) {
	for part := range strings.SplitSeq(text, "==================\n") {
		if strings.HasPrefix(part, "WARNING: DATA RACE\n") {
			reports = append(reports, report{text: part, accesses: accesses(part)})
		}
	}
	return reports
}

// accessLine begins the stack of an access, as "Previous atomic write at 0x00c000012345 by goroutine 7:".
var accessLine = regexp.MustCompile(`(?i)^(previous )?(atomic )?(read|write) at 0x[0-9a-f]+ by `)

func accesses(text string) (stacks [][]string) {
	for section := range strings.SplitSeq(text, "\n\n") {
		lines := strings.Split(strings.TrimPrefix(section, "WARNING: DATA RACE\n"), "\n")
		if !accessLine.MatchString(lines[0]) {
			continue
		}
		var stack []string
		for _, line := range lines[1:] {
			// deeper: its file and line
			if name, ok := strings.CutPrefix(line, "  "); ok && !strings.HasPrefix(name, " ") {
				stack = append(stack, strings.TrimSuffix(name, "()"))
			}
		}
		stacks = append(stacks, stack)
	}
	return stacks
}

const gobgp = "github.com/osrg/gobgp/v4/"

// serverAPI are the functions of GoBGP that it lets programs call from any goroutine.
var serverAPI = regexp.MustCompile(`^pkg/server\.\(\*BgpServer\)\.[A-Z]\w*$`)

// accessFunctions returns the functions of the accesses, sorted, each once, and whether Manx is involved in an access.
func (r report) accessFunctions() (names []string, ours bool) {
	for _, stack := range r.accesses {
		name, alone := accessFunction(stack)
		names = append(names, name)
		ours = ours || !alone
	}
	slices.Sort(names)
	return slices.Compact(names), ours || len(r.accesses) < 2
}

// accessFunction returns the innermost function that is not of the standard library, and whether it is GoBGP and so are
// all functions down to the goroutine's begin or to a function of the server's API. The caller of that function has no
// part in the race: it may be called from any goroutine.
func accessFunction(stack []string) (name string, alone bool) {
	for _, frame := range stack {
		if standard(frame) {
			continue
		}
		short, isGoBGP := strings.CutPrefix(frame, gobgp)
		short = withoutClosure(short)
		if name == "" {
			name = short
		}
		switch {
		case isGoBGP && serverAPI.MatchString(short):
			return name, true
		case isGoBGP:
		case goStatement.MatchString(frame): // of ours, but only "go server.Serve()"
		default:
			return name, false
		}
	}
	if name == "" { // the detector no longer has the stack, or only the standard library is on it
		return "a stack without names", false
	}
	return name, true
}

// standard reports whether a function is of the standard library: the first part of its path is no host name.
func standard(frame string) bool {
	path, _, isPath := strings.Cut(frame, "/")
	if isPath {
		return !strings.Contains(path, ".")
	}
	return !strings.HasPrefix(frame, "main.")
}

var (
	closure     = regexp.MustCompile(`(\.func\d+|\.gowrap\d+|\.deferwrap\d+|\.\d+|-range\d+|-fm)+$`)
	goStatement = regexp.MustCompile(`\.gowrap\d+$`)
)

func withoutClosure(name string) string { return closure.ReplaceAllString(name, "") }
