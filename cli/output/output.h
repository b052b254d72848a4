// How the commands print: tables, sizes, rates, a progress bar on a terminal, and messages as JSON.
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
// "12.30 GB/s" (10^9 bytes), "42.5 MB/s" below a tenth of one, "1.2 kB/s"; "-" for none.
std::string FormatRate(double bytes_a_second);
std::string FormatRate(uint64_t bytes, absl::Duration elapsed);  // "-" for no time
std::string FormatSeconds(absl::Duration elapsed);               // "0.123"

// Prints to stdout text that names what other processes wrote (addresses, lanes, error texts): line feeds
// stay, other control characters are escaped (base/text.h).
void Print(std::string_view text);
template <class... Arguments>
void PrintF(const absl::FormatSpec<Arguments...>& format, const Arguments&... arguments) {
  Print(absl::StrFormat(format, arguments...));
}

// Columns as wide as their widest cell, in which control characters are escaped; numbers (cells that begin
// with a digit or are "-") to the right.
class Table {
 public:
  explicit Table(std::vector<std::string> header) : header_(std::move(header)) {}
  void Add(std::vector<std::string> row);
  std::string ToString() const;

 private:
  std::vector<std::string> header_;
  std::vector<std::vector<std::string>> rows_;
};

// Draws a bar on `out` once a transfer has run for a second, if that is a terminal; erased at destruction.
// The callback may be called from any thread, one at a time.
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

// "fetch tcp node-0: 1.03 GiB in 0.31 s ..." one line a stage and source.
std::string DescribeStages(const TransferReport& report);

// The message by protobuf's own mapping, so that a field is never spelled twice: field names as in the .proto
// files, unset fields left out unless `every_field`, one line break at the end.
std::string ToJson(const google::protobuf::Message& message, bool every_field = false);

}  // namespace tensorcast::cli
