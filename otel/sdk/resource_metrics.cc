#include "otel/sdk/resource_metrics.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "otel/api/metrics_catalogue.h"
#include "otel/sdk/nvml.h"

namespace tensorcast::otel::sdk {
namespace {

std::string ReadFile(const std::string& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

// The words of a line as numbers; a word that is not a number counts as 0.
std::vector<double> Numbers(std::string_view text) {
  std::vector<double> numbers;
  for (std::string_view word : absl::StrSplit(text, absl::ByAnyChar(" \n"), absl::SkipEmpty())) {
    double number = 0;
    if (!absl::SimpleAtod(word, &number)) number = 0;
    numbers.push_back(number);
  }
  return numbers;
}

double TickSeconds() { return 1.0 / static_cast<double>(sysconf(_SC_CLK_TCK)); }
double PageBytes() { return static_cast<double>(sysconf(_SC_PAGESIZE)); }

// proc(5): /proc/<pid>/stat. The fields after the command, which is in parentheses and may contain anything.
std::vector<double> ProcessStat(const std::string& proc) {
  const std::string text = ReadFile(proc + "/self/stat");
  const size_t command_end = text.rfind(')');
  if (command_end == std::string::npos) return {};
  std::vector<double> fields = Numbers(std::string_view(text).substr(command_end + 1));
  return fields.size() < 20 ? std::vector<double>() : fields;  // [0] is field 3, the state
}

struct CpuTimes {
  double user = 0;
  double system = 0;
  double iowait = 0;
  double idle = 0;

  double total() const { return user + system + iowait + idle; }
  double idling() const { return iowait + idle; }
};

// The first line of /proc/stat: user nice system idle iowait irq softirq steal, in ticks.
std::optional<CpuTimes> HostCpu(const std::string& proc) {
  std::string text = ReadFile(proc + "/stat");
  const std::vector<double> n = Numbers(text.substr(0, text.find('\n')));
  if (n.size() < 9) return std::nullopt;
  // nice belongs to user; irq, softirq and steal to system. The first word is "cpu".
  return CpuTimes{.user = (n[1] + n[2]) * TickSeconds(),
                  .system = (n[3] + n[6] + n[7] + n[8]) * TickSeconds(),
                  .iowait = n[5] * TickSeconds(),
                  .idle = n[4] * TickSeconds()};
}

struct HostMemory {
  double total = 0;
  double available = 0;
};

std::optional<HostMemory> ReadHostMemory(const std::string& proc) {
  std::optional<double> total;
  std::optional<double> available;
  for (std::string_view line : absl::StrSplit(ReadFile(proc + "/meminfo"), '\n')) {
    const std::vector<double> n = Numbers(line);
    if (n.size() < 2) continue;
    // The file says kB and means KiB.
    if (absl::StartsWith(line, "MemTotal:")) total = n[1] * 1024;
    if (absl::StartsWith(line, "MemAvailable:")) available = n[1] * 1024;
  }
  if (total.value_or(0) <= 0 || !available.has_value()) return std::nullopt;
  return HostMemory{*total, *available};
}

void ObserveProcess(const std::string& proc, std::vector<GaugeRegistration>& out) {
  // Each gauge reads its file anew at each collection, on the thread that collects. A file that cannot be
  // read gives no value, and the metric is missing instead of wrong.
  out.push_back(metrics::kProcessCpuSeconds.Observe([proc](auto& observer) {
    // Fields 14 and 15 (utime, stime), and 20 below (num_threads).
    const std::vector<double> stat = ProcessStat(proc);
    if (stat.empty()) return;
    observer.Observe(stat[11] * TickSeconds(), {"user"});
    observer.Observe(stat[12] * TickSeconds(), {"system"});
  }));
  out.push_back(metrics::kProcessThreads.Observe([proc](auto& observer) {
    const std::vector<double> stat = ProcessStat(proc);
    if (!stat.empty()) observer.Observe(stat[17]);
  }));
  out.push_back(metrics::kProcessMemoryBytes.Observe([proc](auto& observer) {
    const std::vector<double> statm = Numbers(ReadFile(proc + "/self/statm"));
    // Size, resident and shared, in pages.
    if (statm.size() < 3) return;
    observer.Observe(statm[0] * PageBytes(), {"virtual"});
    observer.Observe(statm[1] * PageBytes(), {"resident"});
    observer.Observe(statm[2] * PageBytes(), {"shared"});
  }));
  out.push_back(metrics::kProcessOpenFiles.Observe([proc](auto& observer) {
    std::error_code error;
    // One of the open files is that of this listing itself.
    const std::filesystem::directory_iterator files(proc + "/self/fd", error);
    if (!error) observer.Observe(static_cast<double>(std::distance(files, {})));
  }));
}

// What the utilisation counts from. Thread-safe.
class CpuShare {
 public:
  std::optional<double> BusySinceLast(const CpuTimes& now) {
    absl::MutexLock lock(&mutex_);
    const double total = now.total() - last_.total();
    const double idle = now.idling() - last_.idling();
    last_ = now;
    if (total <= 0) return std::nullopt;
    return std::max(0.0, 1 - idle / total);
  }

 private:
  absl::Mutex mutex_;
  CpuTimes last_ ABSL_GUARDED_BY(mutex_);  // zero at first: since boot
};

void ObserveHost(const std::string& proc, std::vector<GaugeRegistration>& out) {
  out.push_back(metrics::kHostCpuSeconds.Observe([proc](auto& observer) {
    const std::optional<CpuTimes> cpu = HostCpu(proc);
    if (!cpu.has_value()) return;
    observer.Observe(cpu->user, {"user"});
    observer.Observe(cpu->system, {"system"});
    observer.Observe(cpu->iowait, {"iowait"});
    observer.Observe(cpu->idle, {"idle"});
  }));
  // Shared with the callback, which needs the previous figures: a share is one of the time between two
  // collections.
  out.push_back(
      metrics::kHostCpuUtilization.Observe([proc, share = std::make_shared<CpuShare>()](auto& observer) {
        const std::optional<CpuTimes> cpu = HostCpu(proc);
        if (!cpu.has_value()) return;
        if (const auto busy = share->BusySinceLast(*cpu)) observer.Observe(*busy);
      }));
  const auto observe = [&](auto metric, double (*value)(const HostMemory&)) {
    out.push_back(metric.Observe([proc, value](auto& observer) {
      if (const auto memory = ReadHostMemory(proc)) observer.Observe(value(*memory));
    }));
  };
  observe(metrics::kHostMemoryUsedBytes,
          [](const HostMemory& memory) { return memory.total - memory.available; });
  observe(metrics::kHostMemoryTotalBytes, [](const HostMemory& memory) { return memory.total; });
  observe(metrics::kHostMemoryUtilization,
          [](const HostMemory& memory) { return 1 - memory.available / memory.total; });
}

void ObserveGpus(const std::string& library, std::vector<GaugeRegistration>& out) {
  // Hosts without NVIDIA's library do without these metrics.
  const std::shared_ptr<const Nvml> nvml = Nvml::Load(library);
  if (nvml == nullptr) return;
  const auto observe = [&](auto metric, std::optional<double> (*value)(const Nvml&, int gpu)) {
    out.push_back(metric.Observe([nvml, value](auto& observer) {
      for (int gpu = 0; gpu < nvml->device_count(); ++gpu) {
        if (const auto figure = value(*nvml, gpu)) observer.Observe(*figure, {absl::StrCat(gpu)});
      }
    }));
  };
  observe(metrics::kGpuUtilization, [](const Nvml& nvml, int gpu) { return nvml.Utilization(gpu); });
  observe(metrics::kGpuMemoryUsedBytes, [](const Nvml& nvml, int gpu) -> std::optional<double> {
    if (const auto memory = nvml.Memory(gpu)) return memory->used;
    return std::nullopt;
  });
  observe(metrics::kGpuMemoryTotalBytes, [](const Nvml& nvml, int gpu) -> std::optional<double> {
    if (const auto memory = nvml.Memory(gpu)) return memory->total;
    return std::nullopt;
  });
}

}  // namespace

std::vector<GaugeRegistration> ObserveResources(const ResourceOptions& options) {
  std::vector<GaugeRegistration> registrations;
  ObserveProcess(options.proc, registrations);
  ObserveHost(options.proc, registrations);
  ObserveGpus(options.nvml, registrations);
  return registrations;
}

}  // namespace tensorcast::otel::sdk
