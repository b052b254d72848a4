// The forms in which commands print: tables, sizes, rates, a progress bar on a terminal, and messages as
// JSON. Pure functions, except Print and ProgressBar.
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "base/steady_time.h"
#include "core/replica/transfer_report.h"

namespace google::protobuf {
class Message;
}

namespace tensorcast::cli {

std::string FormatBytes(uint64_t bytes);  // "1.03 GiB"
// "12.30 GB/s" (10^9 bytes), "42.5 MB/s" below 0.1 GB/s, "1.2 kB/s"; "-" for 0.
std::string FormatRate(double bytes_a_second);
std::string FormatRate(uint64_t bytes, absl::Duration elapsed);  // "-" for zero time
std::string FormatSeconds(absl::Duration elapsed);               // "0.123"

// Prints a text to stdout. The text may contain parts from other processes (addresses, lanes, errors), so
// control characters other than line feeds are escaped (base/text.h).
void Print(std::string_view text);
template <class... Arguments>
void PrintF(const absl::FormatSpec<Arguments...>& format, const Arguments&... arguments) {
  Print(absl::StrFormat(format, arguments...));
}

// A table in text. Columns are as wide as their widest cell. Control characters in cells are escaped. Numbers
// (cells that begin with a digit or are "-") are right-aligned.
class Table {
 public:
  explicit Table(std::vector<std::string> header) : header_(std::move(header)) {}
  void Add(std::vector<std::string> row);
  std::string ToString() const;

 private:
  std::vector<std::string> header_;
  std::vector<std::vector<std::string>> rows_;
};

// Draws a bar on `out` after a transfer has run for a second, if `out` is a terminal. The destructor erases
// the bar. The callback may be called from any thread, one call at a time.
class ProgressBar {
 public:
  explicit ProgressBar(std::string label, std::FILE* out = stderr,
                       std::function<SteadyTime()> now = SteadyNow);
  ~ProgressBar();
  std::function<void(const TransferProgress&)> callback();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// Warns on stderr that the key may be bound to a later revision by now.
void WarnUnconfirmed(const std::string& key, uint64_t revision);

// One line per stage and source: "fetch tcp node-0: 1.03 GiB in 0.31 s ..."
std::string DescribeStages(const TransferReport& report);

// The message in protobuf's JSON mapping (https://protobuf.dev/programming-guides/json/), with the field
// names of the .proto files. Leaves out unset fields unless `every_field`. Ends with one line break.
std::string ToJson(const google::protobuf::Message& message, bool every_field = false);

}  // namespace tensorcast::cli
