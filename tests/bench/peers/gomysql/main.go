// What go-mysql does with a log: "decode" counts the rows of the events that its BinlogSyncer decodes, "canal" those that
// its canal hands to a handler. Prints one line of JSON.
//
// Usage: gomysql MODE HOST PORT FILE OFFSET TABLE CHANGES
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/go-mysql-org/go-mysql/canal"
	"github.com/go-mysql-org/go-mysql/mysql"
	"github.com/go-mysql-org/go-mysql/replication"
)

type counter struct {
	canal.DummyEventHandler
	wanted, seen   int
	began          time.Time
	busy float64
	done           chan struct{}
}

func processor() float64 {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		panic(err)
	}
	return float64(used.Utime.Nano()+used.Stime.Nano()) / 1e9
}

// took counts changes, and tells whether these are all.
func (c *counter) took(changes int) bool {
	if c.seen == 0 {
		c.began, c.busy = time.Now(), processor()
	}
	c.seen += changes
	return c.seen >= c.wanted
}

func (c *counter) say() {
	line, err := json.Marshal(map[string]any{
		"changes": c.seen, "seconds": time.Since(c.began).Seconds(), "cpu_s": processor() - c.busy,
	})
	if err != nil {
		panic(err)
	}
	fmt.Println(string(line))
}

func (c *counter) OnRow(event *canal.RowsEvent) error {
	changes := len(event.Rows)
	if event.Action == canal.UpdateAction {
		changes /= 2
	}
	if c.seen < c.wanted && c.took(changes) {
		c.say()
		close(c.done)
	}
	return nil
}

func (c *counter) String() string { return "counter" }

func main() {
	mode, host, file, table := os.Args[1], os.Args[2], os.Args[4], os.Args[6]
	port, offset, wanted := number(os.Args[3]), number(os.Args[5]), number(os.Args[7])
	quiet := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	from := mysql.Position{Name: file, Pos: uint32(offset)}
	count := &counter{wanted: wanted, done: make(chan struct{})}
	if mode == "canal" {
		settings := canal.NewDefaultConfig()
		settings.Addr, settings.User, settings.ServerID = fmt.Sprintf("%s:%d", host, port), "root", 7101
		settings.Logger, settings.Dump.ExecutionPath = quiet, ""
		settings.IncludeTableRegex = []string{table}
		reader, err := canal.NewCanal(settings)
		if err != nil {
			panic(err)
		}
		reader.SetEventHandler(count)
		go func() {
			if err := reader.RunFrom(from); err != nil && count.seen < count.wanted {
				panic(err)
			}
		}()
		<-count.done
		reader.Close()
		return
	}
	syncer := replication.NewBinlogSyncer(replication.BinlogSyncerConfig{
		ServerID: 7102, Flavor: "mysql", Host: host, Port: uint16(port), User: "root", Logger: quiet,
	})
	defer syncer.Close()
	stream, err := syncer.StartSync(from)
	if err != nil {
		panic(err)
	}
	for {
		event, err := stream.GetEvent(context.Background())
		if err != nil {
			panic(err)
		}
		rows, is := event.Event.(*replication.RowsEvent)
		if !is {
			continue
		}
		changes := len(rows.Rows)
		switch event.Header.EventType {
		case replication.UPDATE_ROWS_EVENTv1, replication.UPDATE_ROWS_EVENTv2:
			changes /= 2
		}
		if count.took(changes) {
			count.say()
			return
		}
	}
}

func number(text string) int {
	found, err := strconv.Atoi(text)
	if err != nil {
		panic(err)
	}
	return found
}
