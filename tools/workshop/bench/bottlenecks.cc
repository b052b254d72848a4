#include "tools/workshop/bench/bottlenecks.h"

#include <signal.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "base/rate_limit.h"
#include "base/status.h"

namespace tensorcast::bench {
namespace {

constexpr absl::Duration kStopPeriod = absl::Milliseconds(200);
// A source is busy where its receivers share something. On this host that would be its few cores; so the
// source has a link that is slower than they are.
constexpr uint64_t kSharedUplinkBits = 4'000'000'000;
constexpr int kMaxOthers = 4;  // each is a process with a pool of its own

constexpr std::string_view kFromGiver = "node-0";
constexpr std::string_view kTakerItself = "";

// Stops a process for a share of each period.
class DutyCycle : public Disturbance {
 public:
  DutyCycle(Process* process, double stopped)
      : process_(process), thread_([this, stopped] {
          while (!end_.WaitForNotificationWithTimeout(kStopPeriod * (1 - stopped))) {
            (void)process_->Signal(SIGSTOP);
            absl::SleepFor(kStopPeriod * stopped);
            (void)process_->Signal(SIGCONT);
          }
        }) {}
  // Each turn ends with SIGCONT, so the process runs on from here.
  ~DutyCycle() override {
    end_.Notify();
    thread_.join();
  }

 private:
  Process* const process_;
  absl::Notification end_;
  std::thread thread_;
};

// Threads that compute, so many for each core that they take this share of what a thread would get.
class Burners : public Disturbance {
 public:
  explicit Burners(double share) {
    const double cores = std::max(1u, std::thread::hardware_concurrency());
    const int count = std::max(1, static_cast<int>(cores * share / (1 - share) + 0.5));
    for (int i = 0; i < count; ++i) {
      threads_.emplace_back([this] {
        while (!stop_) {
        }
      });
    }
  }
  ~Burners() override {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  std::atomic<bool> stop_ = false;
  std::vector<std::thread> threads_;
};

using Begun = absl::StatusOr<std::unique_ptr<Disturbance>>;

// A link that stays as slow as it is made.
Begun Throttled(const Running& running, int node, uint64_t bits_per_second) {
  TC_RETURN_IF_ERROR(running.network->Throttle(node, bits_per_second));
  return std::make_unique<Disturbance>();
}

Begun SlowUplink(double strength, const Running& running) {
  return Throttled(running, kGiver, 8 * running.plan->RateFor(strength));
}

Begun SlowDownlink(double strength, const Running& running) {
  return Throttled(running, kTaker, 8 * running.plan->RateFor(strength));
}

Begun SharedUplink(double /*strength*/, const Running& running) {
  return Throttled(running, kGiver, kSharedUplinkBits);
}

Begun StoppedSource(double strength, const Running& running) {
  return std::make_unique<DutyCycle>(&running.processes->daemon(kGiver), strength);
}

Begun StoppedReceiver(double strength, const Running& running) {
  return std::make_unique<DutyCycle>(&running.processes->daemon(kTaker), strength);
}

Begun Burn(double strength, const Running& /*running*/) { return std::make_unique<Burners>(strength); }

// The store's server is reached over loopback, which nothing else uses.
Begun SlowObjectStore(double strength, const Running& running) {
  TC_RETURN_IF_ERROR(running.network->Run(
      kTaker,
      {"tc", "qdisc", "replace", "dev", "lo", "root", "tbf", "rate",
       absl::StrCat(8 * running.plan->RateFor(strength), "bit"), "burst", "512kb", "latency", "50ms"}));
  return std::make_unique<Disturbance>();
}

Begun ThrottledDisk(double strength, const Running& running) {
  TC_RETURN_IF_ERROR(
      running.disk->Throttle(running.processes->daemon(kTaker).pid(), running.plan->RateFor(strength)));
  return std::make_unique<Disturbance>();
}

// A daemon's limit of `rate` lets a burst move first: this one makes the transfer as slow as `rate` alone.
uint64_t LimitWithBurst(uint64_t rate, uint64_t bytes) {
  if (rate == 0) return 0;
  const double seconds = static_cast<double>(bytes) / static_cast<double>(rate);
  return static_cast<uint64_t>(static_cast<double>(bytes) /
                               (seconds + absl::ToDoubleSeconds(RateLimit::kBurst)));
}

void LimitReceiver(double strength, Plan& plan) {
  const uint64_t limit = LimitWithBurst(plan.RateFor(strength), plan.bytes);
  plan.taker_settings.push_back(absl::StrCat("daemon.limits.receive=", limit));
}

void LimitSource(double strength, Plan& plan) {
  const uint64_t limit = LimitWithBurst(plan.RateFor(strength), plan.bytes);
  plan.giver_settings.push_back(absl::StrCat("daemon.limits.send=", limit));
}

void AddOthers(double strength, Plan& plan) {
  // With n others the receiver gets one part in n + 1, so they cost n / (n + 1) of the time.
  plan.others = std::clamp(static_cast<int>(strength / (1 - strength) + 0.5), 1, kMaxOthers);
}

void FillPool(double strength, Plan& plan) {
  plan.pool_in_use = plan.undisturbed * (strength / (1 - strength));
}

void UseTls(double /*strength*/, Plan& plan) { plan.tls = true; }

}  // namespace

uint64_t Plan::RateFor(double strength) const {
  if (undisturbed <= absl::ZeroDuration()) return 0;
  return static_cast<uint64_t>(static_cast<double>(bytes) / absl::ToDoubleSeconds(undisturbed) *
                               (1 - strength));
}

std::span<const Bottleneck> AllBottlenecks() {
  using enum Scene;
  static const auto* const all = new std::vector<Bottleneck>{
      {.name = "uplink",
       .scenes = {kPull, kSwarm},
       .cause = "network",
       .from = kFromGiver,
       .begin = SlowUplink,
       .replaces = "shared uplink"},
      {"downlink", {kPull}, "network", kFromGiver, nullptr, SlowDownlink},
      {"stopped source", {kPull}, "stopped", kFromGiver, nullptr, StoppedSource},
      {"stopped receiver", {kPull, kDisk, kObjects}, "stopped", kTakerItself, nullptr, StoppedReceiver},
      {"burners", {kPull}, "no cpu", std::nullopt, nullptr, Burn},
      {"limits.receive", {kPull}, "limiter", kFromGiver, LimitReceiver},
      {"limits.send", {kPull}, "limiter", kFromGiver, LimitSource},
      {"busy source", {kPull}, "other receivers", kFromGiver, AddOthers, nullptr, "shared uplink"},
      {.name = "shared uplink",
       .scenes = {kPull},
       .cause = "network",
       .from = kFromGiver,
       .begin = SharedUplink,
       .is_drawn = false},
      // Encrypting and decrypting is work of the threads that send and receive.
      {"TLS", {kPull}, "cores", std::nullopt, UseTls},
      {"small pool", {kPull}, "space", kTakerItself, FillPool},
      {"disk", {kDisk}, "disk", kTakerItself, nullptr, ThrottledDisk},
      {"object store", {kObjects}, "object store", kTakerItself, nullptr, SlowObjectStore},
  };
  return *all;
}

const Bottleneck* FindBottleneck(std::string_view name) {
  const auto all = AllBottlenecks();
  const auto found = std::ranges::find(all, name, &Bottleneck::name);
  return found == all.end() ? nullptr : &*found;
}

}  // namespace tensorcast::bench
