// How commands print: tables, sizes, rates, a progress bar on a terminal, and messages as JSON.
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

// Prints a text to stdout that may contain text of other processes (addresses, lanes, errors): keeps line
// feeds, escapes other control characters (base/text.h).
void Print(std::string_view text);
template <class... Arguments>
void PrintF(const absl::FormatSpec<Arguments...>& format, const Arguments&... arguments) {
  Print(absl::StrFormat(format, arguments...));
}

// Columns are as wide as their widest cell; control characters in cells are escaped. Numbers (cells that
// begin with a digit or are "-") are right-aligned.
class Table {
 public:
  explicit Table(std::vector<std::string> header) : header_(std::move(header)) {}
  void Add(std::vector<std::string> row);
  std::string ToString() const;

 private:
  std::vector<std::string> header_;
  std::vector<std::vector<std::string>> rows_;
};

// Draws a bar on `out`, if that is a terminal, once a transfer has run for a second; its destructor erases
// it. The callback may be called from any thread, one call at a time.
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

// The message by protobuf's own mapping, so that field names are as in the .proto files; unset fields are
// left out unless `every_field`; one line break at the end.
std::string ToJson(const google::protobuf::Message& message, bool every_field = false);

}  // namespace tensorcast::cli
