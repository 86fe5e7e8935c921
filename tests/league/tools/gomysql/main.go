// What go-mysql's canal hands over: every row of a schema as a line of JSON. It starts where it is told, and tells where it is.
//
// Usage: gomysql FLAVOR HOST PORT SERVER_ID SCHEMA FILE OFFSET
package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-mysql-org/go-mysql/canal"
	"github.com/go-mysql-org/go-mysql/mysql"
	"github.com/go-mysql-org/go-mysql/replication"
	"github.com/go-mysql-org/go-mysql/schema"
)

type printer struct {
	canal.DummyEventHandler
	lock sync.Mutex
}

func (p *printer) print(what map[string]any) {
	line, err := json.Marshal(what)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	p.lock.Lock()
	defer p.lock.Unlock()
	fmt.Println(string(line))
}

func (p *printer) String() string { return "printer" }

// value keeps bytes as bytes, and numbers as the text that Go has for them.
func value(from any) any {
	switch it := from.(type) {
	case nil:
		return nil
	case []byte:
		return map[string]string{"bytes": base64.StdEncoding.EncodeToString(it)}
	case string:
		return map[string]string{"text": base64.StdEncoding.EncodeToString([]byte(it))}
	case int8, int16, int32, int64, int, uint8, uint16, uint32, uint64:
		return it
	case float32:
		return strconv.FormatFloat(float64(it), 'g', -1, 32)
	default:
		return fmt.Sprint(it)
	}
}

// label resolves the numbers of ENUM and SET by the definition that the canal has.
func label(column schema.TableColumn, from any) any {
	number, is := from.(int64)
	switch {
	case is && column.Type == schema.TYPE_ENUM && number == 0:
		return ""
	case is && column.Type == schema.TYPE_ENUM && int(number) <= len(column.EnumValues):
		return column.EnumValues[number-1]
	case is && column.Type == schema.TYPE_SET:
		var members []string
		for at, member := range column.SetValues {
			if number>>at&1 == 1 {
				members = append(members, member)
			}
		}
		return strings.Join(members, ",")
	}
	return from
}

func (p *printer) OnRow(event *canal.RowsEvent) error {
	names := make([]string, len(event.Table.Columns))
	for at, column := range event.Table.Columns {
		names[at] = column.Name
	}
	rows := make([][]any, len(event.Rows))
	for at, row := range event.Rows {
		for column, one := range row {
			if column < len(event.Table.Columns) {
				one = label(event.Table.Columns[column], one)
			}
			rows[at] = append(rows[at], value(one))
		}
	}
	p.print(map[string]any{"table": event.Table.Name, "action": event.Action, "names": names, "rows": rows})
	return nil
}

func (p *printer) OnPosSynced(_ *replication.EventHeader, at mysql.Position, _ mysql.GTIDSet, _ bool) error {
	p.print(map[string]any{"file": at.Name, "offset": at.Pos})
	return nil
}

func main() {
	port, id, offset := number(os.Args[3]), number(os.Args[4]), number(os.Args[7])
	settings := canal.NewDefaultConfig()
	settings.Flavor, settings.Addr, settings.User = os.Args[1], fmt.Sprintf("%s:%d", os.Args[2], port), "root"
	settings.ServerID, settings.Dump.ExecutionPath = uint32(id), ""
	settings.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	settings.IncludeTableRegex = []string{os.Args[5] + `\..*`}
	settings.UseDecimal, settings.TimestampStringLocation = true, time.UTC
	reader, err := canal.NewCanal(settings)
	if err == nil {
		reader.SetEventHandler(&printer{})
		err = reader.RunFrom(mysql.Position{Name: os.Args[6], Pos: uint32(offset)})
	}
	fmt.Fprintln(os.Stderr, "ended:", err)
	os.Exit(1)
}

func number(text string) int {
	found, err := strconv.Atoi(text)
	if err != nil {
		panic(err)
	}
	return found
}
