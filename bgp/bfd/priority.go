package bfd

import (
	"os"
	"runtime"
	"strconv"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// Priorities (nice values) of the threads that send and receive packets, and of all others of the process.
const (
	packetNice  = -20
	processNice = -15
)

// prioritise gives the goroutine a thread of its own, until both end, that the kernel schedules before others: a busy
// host must not pass for a broken path.
func prioritise(log *zap.Logger) {
	runtime.LockOSThread()
	if err := unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), packetNice); err != nil {
		log.Debug("bfd runs with normal priority", zap.Error(err))
	}
}

// prioritiseProcess raises the priority of all threads that there are; those to come inherit it. It is not enough to
// have some urgent threads in a Go process: when the garbage collector stops the world, they wait for all the others.
func prioritiseProcess(log *zap.Logger) {
	threads, err := os.ReadDir("/proc/self/task")
	for _, thread := range threads {
		id, convErr := strconv.Atoi(thread.Name())
		if convErr != nil {
			continue
		}
		if now, getErr := unix.Getpriority(unix.PRIO_PROCESS, id); getErr == nil && 20-now <= processNice {
			continue // the kernel returns 20 minus the nice value
		}
		if setErr := unix.Setpriority(unix.PRIO_PROCESS, id, processNice); setErr != nil {
			err = setErr
		}
	}
	if err != nil {
		log.Warn("the process keeps its normal priority: a busy host may look like a broken path to BFD "+
			"(CAP_SYS_NICE is needed)", zap.Error(err))
	}
}
