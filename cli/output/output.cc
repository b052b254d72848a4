#include "cli/output/output.h"

#include <google/protobuf/util/json_util.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "base/steady_time.h"
#include "base/text.h"

namespace tensorcast::cli {
namespace {

constexpr absl::Duration kQuietTime = absl::Seconds(1);
constexpr int kBarWidth = 30;

// Columns of numbers are set to the right.
bool IsNumber(const std::string& cell) {
  return cell.empty() || cell == "-" || std::isdigit(static_cast<unsigned char>(cell[0]));
}

// A line has room for so many.
constexpr size_t kSourcesShown = 3;

// "tcp node-0 60 %, tcp node-2 40 %": the sources and the share of bytes of each, the largest first.
std::string SourcesText(std::vector<SourceReport> sources) {
  // Stable: two sources with equal shares must not change places with each report.
  std::ranges::stable_sort(sources, std::greater(), [](const SourceReport& source) { return source.bytes; });
  uint64_t bytes = 0;
  for (const SourceReport& source : sources) bytes += source.bytes;
  std::vector<std::string> shown;
  for (const SourceReport& source : sources) {
    if (shown.size() == kSourcesShown) break;
    std::string text = absl::StrCat(source.source.lane, " ", source.source.name);
    if (sources.size() > 1 && bytes > 0) {
      absl::StrAppendFormat(&text, " %.0f %%",
                            100 * static_cast<double>(source.bytes) / static_cast<double>(bytes));
    }
    shown.push_back(std::move(text));
  }
  std::string text = absl::StrJoin(shown, ", ");
  if (sources.size() > shown.size()) absl::StrAppend(&text, " and ", sources.size() - shown.size(), " more");
  return text;
}

}  // namespace

// Sizes in powers of two, as memory has them.
std::string FormatBytes(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? absl::StrCat(bytes, " B") : absl::StrFormat("%.2f %s", value, kUnits[unit]);
}

// Rates in powers of ten, as links and disks have them.
std::string FormatRate(double bytes_a_second) {
  if (bytes_a_second <= 0) return "-";
  if (bytes_a_second >= 1e8) return absl::StrFormat("%.2f GB/s", bytes_a_second / 1e9);
  if (bytes_a_second >= 1e5) return absl::StrFormat("%.1f MB/s", bytes_a_second / 1e6);
  return absl::StrFormat("%.1f kB/s", bytes_a_second / 1e3);
}

std::string FormatRate(uint64_t bytes, absl::Duration elapsed) {
  const double seconds = absl::ToDoubleSeconds(elapsed);
  return FormatRate(seconds <= 0 ? 0.0 : static_cast<double>(bytes) / seconds);
}

std::string FormatSeconds(absl::Duration elapsed) {
  return absl::StrFormat("%.3f", absl::ToDoubleSeconds(elapsed));
}

void Print(std::string_view text) { std::fputs(Printable(text, /*keep_lines=*/true).c_str(), stdout); }

void Table::Add(std::vector<std::string> row) {
  for (std::string& cell : row) cell = Printable(cell);
  rows_.push_back(std::move(row));
}

std::string Table::ToString() const {
  std::vector<size_t> widths;
  for (const std::string& cell : header_) widths.push_back(cell.size());
  std::vector<bool> numeric(header_.size(), true);
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size() && i < widths.size(); ++i) {
      widths[i] = std::max(widths[i], row[i].size());
      numeric[i] = numeric[i] && IsNumber(row[i]);
    }
  }
  std::string text;
  const auto append = [&](const std::vector<std::string>& row) {
    std::string line;
    for (size_t i = 0; i < row.size() && i < widths.size(); ++i) {
      const std::string pad(widths[i] - row[i].size(), ' ');
      absl::StrAppend(&line, i == 0 ? "" : "  ", numeric[i] ? pad + row[i] : row[i] + pad);
    }
    // Spaces at the end would wrap on a narrow terminal.
    line.erase(line.find_last_not_of(' ') + 1);
    absl::StrAppend(&text, line, "\n");
  };
  append(header_);
  for (const auto& row : rows_) append(row);
  return text;
}

// Shared with the callback, which may outlive the bar: the last report can be under way when the call
// returns.
struct ProgressBar::State {
  const std::string label;
  std::FILE* const out;
  const std::function<SteadyTime()> now;
  const SteadyTime start = now();
  const bool terminal = isatty(fileno(out)) != 0;
  absl::Mutex mutex;
  bool drawn ABSL_GUARDED_BY(mutex) = false;
  bool done ABSL_GUARDED_BY(mutex) = false;

  // Runs on the thread that reports progress. The mutex keeps it from writing between Erase and the answer
  // that the command prints next.
  void Draw(const TransferProgress& progress) {
    absl::MutexLock lock(&mutex);
    const absl::Duration elapsed = now() - start;
    // What is over at once needs no bar, and a file or a pipe gets none. Not after Erase either: the last
    // report may come late, from another thread.
    if (!terminal || done || elapsed < kQuietTime) return;
    const double share = progress.bytes_total == 0 ? 0
                                                   : static_cast<double>(progress.bytes_done) /
                                                         static_cast<double>(progress.bytes_total);
    const int filled = std::clamp(static_cast<int>(share * kBarWidth), 0, kBarWidth);
    const std::string from = progress.waiting_for.empty()
                                 ? SourcesText(progress.sources)
                                 : absl::StrCat("waiting for ", progress.waiting_for);
    // Back to the start of the line, and erased to its end: this text may be shorter than the last one.
    std::fprintf(out, "\r\033[K%s [%s%s] %3.0f %%  %s of %s  %s  %s", label.c_str(),
                 std::string(filled, '#').c_str(), std::string(kBarWidth - filled, ' ').c_str(), share * 100,
                 FormatBytes(progress.bytes_done).c_str(), FormatBytes(progress.bytes_total).c_str(),
                 FormatRate(progress.bytes_done, elapsed).c_str(), Printable(from).c_str());
    drawn = true;
  }

  void Erase() {
    absl::MutexLock lock(&mutex);
    done = true;
    if (drawn) std::fprintf(out, "\r\033[K");
  }
};

ProgressBar::ProgressBar(std::string label, std::FILE* out, std::function<SteadyTime()> now)
    : state_(new State{.label = std::move(label), .out = out, .now = std::move(now)}) {}

ProgressBar::~ProgressBar() { state_->Erase(); }

std::function<void(const TransferProgress&)> ProgressBar::callback() {
  return [state = state_](const TransferProgress& progress) { state->Draw(progress); };
}

// On stderr, for the answer itself goes to stdout as a confirmed one does, and scripts go on with it.
void WarnUnconfirmed(const std::string& key, uint64_t revision) {
  std::fprintf(stderr,
               "tensorcast: resolve key %s: the global store does not answer, so the answer is revision "
               "%llu, the last revision that this node knows; use --confirmed to fail instead\n",
               Printable(key).c_str(), static_cast<unsigned long long>(revision));
}

std::string DescribeStages(const TransferReport& report) {
  Table table({"stage", "lane", "source", "bytes", "seconds", "busy", "rate each"});
  for (const StageReport& stage : report.stages) {
    table.Add({std::string(StageName(stage.stage)), stage.source.lane, stage.source.name,
               FormatBytes(stage.bytes), FormatSeconds(stage.end - stage.start), FormatSeconds(stage.busy),
               FormatRate(stage.bytes, stage.busy)});
  }
  return table.ToString();
}

std::string ToJson(const google::protobuf::Message& message, bool every_field) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = every_field;
  std::string json;
  // The conversion fails only for values that JSON cannot have, such as a time out of range from another
  // process. The text up to there is printed: an answer that is partly unreadable must not fail the command.
  (void)google::protobuf::util::MessageToJsonString(message, &json, options);
  if (json.empty() || json.back() != '\n') json += '\n';
  return json;
}

}  // namespace tensorcast::cli
