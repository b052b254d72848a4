#include "cli/output/output.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "base/steady_time.h"

namespace tensorcast::cli {
namespace {

constexpr absl::Duration kQuietTime = absl::Seconds(1);
constexpr int kBarWidth = 30;

bool IsNumber(const std::string& cell) {
  return cell.empty() || cell == "-" || std::isdigit(static_cast<unsigned char>(cell[0]));
}

}  // namespace

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

std::string FormatRate(uint64_t bytes, absl::Duration elapsed) {
  const double seconds = absl::ToDoubleSeconds(elapsed);
  if (seconds <= 0 || bytes == 0) return "-";
  return absl::StrFormat("%.2f", static_cast<double>(bytes) / seconds / 1e9);
}

std::string FormatSeconds(absl::Duration elapsed) {
  return absl::StrFormat("%.3f", absl::ToDoubleSeconds(elapsed));
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
    line.erase(line.find_last_not_of(' ') + 1);
    absl::StrAppend(&text, line, "\n");
  };
  append(header_);
  for (const auto& row : rows_) append(row);
  return text;
}

struct ProgressBar::State {
  const std::string label;
  std::FILE* const out;
  const std::function<SteadyTime()> now;
  const SteadyTime start = now();
  const bool terminal = isatty(fileno(out)) != 0;
  absl::Mutex mutex;
  bool drawn ABSL_GUARDED_BY(mutex) = false;
  bool done ABSL_GUARDED_BY(mutex) = false;

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
                                 ? progress.source.lane
                                 : absl::StrCat("waiting for ", progress.waiting_for);
    std::fprintf(out, "\r\033[K%s [%s%s] %3.0f %%  %s of %s  %s GB/s  %s", label.c_str(),
                 std::string(filled, '#').c_str(), std::string(kBarWidth - filled, ' ').c_str(), share * 100,
                 FormatBytes(progress.bytes_done).c_str(), FormatBytes(progress.bytes_total).c_str(),
                 FormatRate(progress.bytes_done, elapsed).c_str(), from.c_str());
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

void WarnUnconfirmed(const std::string& key, uint64_t revision) {
  std::fprintf(
      stderr,
      "tensorcast: the global store does not answer: key %s is as this node last knew it, revision %llu\n",
      key.c_str(), static_cast<unsigned long long>(revision));
}

std::string DescribeStages(const TransferReport& report) {
  Table table({"stage", "lane", "source", "bytes", "seconds", "busy", "GB/s"});
  for (const StageReport& stage : report.stages) {
    table.Add({std::string(StageName(stage.stage)), stage.source.lane, stage.source.name,
               FormatBytes(stage.bytes), FormatSeconds(stage.end - stage.start), FormatSeconds(stage.busy),
               FormatRate(stage.bytes, stage.busy)});
  }
  return table.ToString();
}

}  // namespace tensorcast::cli
