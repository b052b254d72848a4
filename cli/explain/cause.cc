#include "cli/explain/cause.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/wall_time.h"
#include "cli/output/output.h"
#include "rpc/convert/transfer_reports.h"

namespace tensorcast::explain {
namespace {

constexpr std::string_view kThisNode = "this node";
// A share this close to all of the time has no sensible inverse.
constexpr double kMaxShare = 0.98;
// Chunks under way when a pull ends are counted by one end and not by the other.
constexpr double kSameBytes = 0.9;
// A thread waits for about a quarter of the time for the thread that hands bytes to it or takes them. So
// without what holds it back a transfer takes this much longer than its busiest thread.
constexpr double kHandOver = 1.3;

double Ratio(absl::Duration part, absl::Duration whole) {
  return whole <= absl::ZeroDuration() ? 0 : std::clamp(absl::FDivDuration(part, whole), 0.0, 1.0);
}

// What a loss of this share costs that comes with time, not with bytes, where only `of` of the time is left.
double OfTheRest(double share, double of) { return of <= 0 ? 0 : std::clamp(share / of, 0.0, 1.0); }

std::string Percent(double share) { return absl::StrFormat("%.0f %%", share * 100); }

// A thread that slept for more of its time than this had nothing to do: what it did meanwhile cost nothing,
// since bytes arrived while it did it. From kBusyThread on its time counts in full.
constexpr double kIdleThread = 0.5;
constexpr double kBusyThread = 0.75;

// Of the share `part` of a thread that was busy for the share `busy`, and could run for `runs` of the time:
// what it cost.
double CostWhereBusy(double part, double busy, double runs) {
  return part * std::clamp((OfTheRest(busy, runs) - kIdleThread) / (kBusyThread - kIdleThread), 0.0, 1.0);
}

// Of the share `no_cpu` of a thread that could run for `runs` of the time: what the waiting cost.
double CostOfWaitingForCpu(double working, double no_cpu, double runs) {
  return CostWhereBusy(no_cpu, working + no_cpu, runs);
}

// What a node could not run for, or was held back by. `of`: what `share` is a part of.
std::string EndWhy(std::string_view name, std::string_view node, double share, std::string_view of,
                   std::string_view limit) {
  if (name == "stopped") {
    return absl::StrCat(
        "All threads of ", node, " stood still for ", Percent(share), " of ", of,
        ": SIGSTOP, a debugger, or a frozen container or virtual machine stopped the process. "
        "Let the process run.");
  }
  if (name == "no cpu") {
    return absl::StrCat("The busiest thread of ", node, " wanted a CPU and had none for ", Percent(share),
                        " of ", of,
                        ". Fewer other programs on the host, or more CPUs for the process, would help.");
  }
  if (name == "limiter") {
    return absl::StrCat(limit, " of ", node, " held the bytes back for ", Percent(share), " of ", of,
                        ". A higher limit would help; a faster lane would not.");
  }
  if (name == "space") {
    return absl::StrCat(
        "The transfer waited for space in the pool of ", node, " for ", Percent(share), " of ", of,
        ": the replicas there were in use. A larger daemon.host_pool, or readers that release ",
        "replicas sooner, would help.");
  }
  if (name == "buffers") {
    return absl::StrCat("Chunks waited for staging memory of ", node, " for ", Percent(share), " of ", of,
                        ", and no chunk was requested meanwhile. More daemon.staging_buffers would help.");
  }
  return absl::StrCat("The busiest thread of ", node, " ran for ", Percent(share), " of ", of,
                      ". Faster cores, or a lane that needs less CPU time, would help.");
}

// What a source recorded of itself; null: nothing.
std::optional<WallTime> TimeOf(const SourceDetails& detail) {
  if (!detail.served.has_value()) return std::nullopt;
  const WallTime time = rpc::FromProto(detail.served->wall_time());
  return time.whole > absl::ZeroDuration() ? std::make_optional(time) : std::nullopt;
}

// Most chunks for host memory are fetched to their place, without staging memory: such a transfer waits for
// memory before its first chunk.
double SpaceShare(const TransferReport& report, absl::Duration total) {
  return report.destination.kind == LocationKind::kCpu ? Ratio(report.wall_time[TimeUse::kBuffers], total)
                                                       : 0;
}

// Every cause has the share of the time that the transfer would not have taken without it, the others being
// as they are. So shares overlap, and may add up to more than 1: a process that is stopped for half of each
// second behind a link that is half as fast as it sends takes four times as long, and either alone would
// halve that.
class Causes {
 public:
  Causes(const TransferReport& report, absl::Duration total, absl::Duration moving,
         const std::vector<SourceDetails>& details)
      : report_(report),
        details_(details),
        total_(total),
        moving_(Ratio(moving, total)),
        own_(report.wall_time) {}

  // The order of the steps matters. What stopped an end is found first, since limits and links cost a share
  // only of the time in which both ends could run. Sources come before links: AddSource sums up in
  // `of_sources_` what single sources cost, and cores and links count for what that leaves.
  Cause Largest(Stage stage) {
    if (own_.whole <= absl::ZeroDuration() || total_ <= absl::ZeroDuration()) return {};
    AddOwn("stopped", Own(TimeUse::kStopped), Own(TimeUse::kStopped));
    AddOwn("no cpu",
           CostOfWaitingForCpu(Own(TimeUse::kWorking), Own(TimeUse::kNoCpu), 1 - Own(TimeUse::kStopped)),
           Own(TimeUse::kNoCpu));
    if (stage != Stage::kFetch) return MajorityOf(causes_);
    double sources_stopped = 0;
    for (const SourceDetails& detail : details_) {
      const std::optional<Account> account = AccountOf(detail);
      if (account.has_value()) sources_stopped += CostOf(account->stopped, account->bytes);
    }
    // The moving time in which both ends could run: what a limit or a link costs is a share of that.
    const double runs = moving_ * (1 - Own(TimeUse::kStopped)) * (1 - std::min(sources_stopped, kMaxShare));
    const double held = OfTheRest(Own(TimeUse::kLimiter), runs);
    const double working = Own(TimeUse::kWorking);
    const double no_cpu = Own(TimeUse::kNoCpu);
    const double short_of_buffers =
        SpaceShare(report_, total_) > 0 ? 0 : OfTheRest(Own(TimeUse::kBuffers), runs);
    // Bytes come into the socket while the limit holds this end back: without it this end would still have
    // its work.
    const double not_working = 1 - OfTheRest(kHandOver * (working + no_cpu), runs);
    AddOwn("limiter", std::clamp(held, 0.0, std::max(not_working, 0.0)) * moving_, Own(TimeUse::kLimiter));
    AddOwn("buffers", short_of_buffers * moving_, Own(TimeUse::kBuffers));
    const double unheld = runs * std::max(1 - held - short_of_buffers, 0.0);
    AddOwn("cores", CostWhereBusy(working, working + no_cpu, unheld), working);
    for (const SourceDetails& detail : details_) AddSource(detail);
    // Too short for figures of threads: what is left may be work as well as waiting.
    if (working + no_cpu <= 0) return MajorityOf(causes_);
    AddCoresOfSources();
    const auto waited = [&](double busy) {
      return std::max(1 - OfTheRest(busy, runs) - held - short_of_buffers, 0.0) * moving_;
    };
    // Bytes go on coming over a link while a thread that sleeps most of the time waits for a CPU; reads are
    // only begun by threads.
    AddWaiting(waited(working + CostOfWaitingForCpu(working, no_cpu, 1 - Own(TimeUse::kStopped))),
               waited(working + no_cpu));
    return CauseToName(causes_);
  }

 private:
  // What a source recorded, as shares of the time that it served.
  struct Account {
    uint64_t bytes = 0;  // that came from it
    double stopped = 0;
    double no_cpu = 0;
    double limiter = 0;
    double working = 0;
    double reading = 0;  // its GPU or disk
    double others = 0;   // of what it sent meanwhile, the share that other receivers got
  };

  double Own(TimeUse use) const { return Ratio(own_[use], total_); }

  uint64_t BytesOf(std::string_view grant_id) const {
    uint64_t bytes = 0;
    for (const StageReport& stage : report_.stages) {
      const bool wanted = grant_id.empty() || stage.source.grant_id == grant_id;
      if (stage.stage == Stage::kFetch && wanted) bytes += stage.bytes;
    }
    return bytes;
  }

  // Not set: it recorded nothing, gave nothing, or lent its memory.
  std::optional<Account> AccountOf(const SourceDetails& detail) const {
    const std::optional<WallTime> time = detail.mapped ? std::nullopt : TimeOf(detail);
    const uint64_t bytes = BytesOf(detail.grant_id);
    if (!time.has_value() || bytes == 0) return std::nullopt;
    // In a swarm the other receivers send on what they got: these bytes came here by them.
    const uint64_t by_others = BytesOf("") - bytes;
    const uint64_t other_bytes = detail.served->other_bytes();
    const auto others = static_cast<double>(other_bytes - std::min(other_bytes, by_others));
    return Account{.bytes = bytes,
                   .stopped = time->Share(TimeUse::kStopped),
                   .no_cpu = time->Share(TimeUse::kNoCpu),
                   .limiter = time->Share(TimeUse::kLimiter),
                   .working = time->Share(TimeUse::kWorking),
                   .reading = std::min(ReadingShare(detail), 1.0),
                   .others = others / (others + static_cast<double>(bytes))};
  }

  void Add(std::string_view name, std::string_view grant_id, double share, std::string why) {
    if (share <= 0) return;
    causes_.push_back({.name = std::string(name),
                       .grant_id = std::string(grant_id),
                       .share = std::min(share, 1.0),
                       .why = std::move(why)});
  }

  // `share` is what the cause costs, `recorded` the figure that the sentence tells: people compare it with
  // their own tools.
  void AddOwn(std::string_view name, double share, double recorded) {
    Add(name, "", share, EndWhy(name, kThisNode, recorded, "the time", "daemon.limits.receive"));
  }

  void AddSource(const SourceDetails& detail) {
    const std::optional<Account> account = AccountOf(detail);
    if (!account.has_value()) return;
    const auto add = [&](std::string_view name, double share, std::string why) {
      const double cost = CostOf(share, account->bytes);
      of_sources_ += cost;
      Add(name, detail.grant_id, cost, std::move(why));
    };
    const auto of_end = [&](std::string_view name, double share, double recorded) {
      add(name, share,
          EndWhy(name, detail.source, recorded, "the time that it served", "daemon.limits.send"));
    };
    of_end("stopped", account->stopped, account->stopped);
    // What its threads did for other receivers is part of what these cost.
    of_end(
        "no cpu",
        CostOfWaitingForCpu(account->working, account->no_cpu, 1 - account->stopped) * (1 - account->others),
        account->no_cpu);
    of_end("limiter", OfTheRest(account->limiter, Runs(*account)), account->limiter);
    add("reading", account->reading,
        absl::StrCat("The source is the limit: ", detail.source, " read its GPU or disk for ",
                     Percent(account->reading),
                     " of the time that it served. A source that has the artifact in ",
                     "host memory would help."));
    // While this end was stopped the others took nothing from it.
    const double meanwhile = account->others * (1 - Own(TimeUse::kStopped));
    add("other receivers", meanwhile <= 0 ? 0 : meanwhile / (meanwhile + 1 - account->others),
        absl::StrCat(
            detail.source, " sent ", cli::FormatBytes(detail.served->other_bytes()),
            " to other receivers meanwhile. Another source, or fewer receivers at once, would help."));
  }

  // The share of the time that it served in which both ends could run.
  double Runs(const Account& account) const { return (1 - account.stopped) * (1 - Own(TimeUse::kStopped)); }

  // The busiest source's. A core may be busy while something else holds the bytes back: it counts for what
  // that leaves.
  void AddCoresOfSources() {
    const SourceDetails* busiest = nullptr;
    double working = 0;
    double recorded = 0;
    for (const SourceDetails& detail : details_) {
      const std::optional<Account> account = AccountOf(detail);
      if (!account.has_value() || account->working * (1 - account->others) <= working) continue;
      busiest = &detail;
      working = account->working * (1 - account->others);
      recorded = account->working;
    }
    if (busiest == nullptr) return;
    Add("cores", busiest->grant_id, std::min(working * moving_, moving_ - std::min(of_sources_, moving_)),
        EndWhy("cores", busiest->source, recorded, "the time that it served", ""));
  }

  // What a source that lost this share of its time cost the transfer. Without the loss of a share f it would
  // have sent f / (1 - f) times as many bytes more; the cost is the part of these in all bytes, theirs
  // included.
  double CostOf(double share, uint64_t bytes) const {
    const double f = std::clamp(share, 0.0, kMaxShare);
    const double lost = static_cast<double>(bytes) * f / (1 - f);
    return moving_ * lost / (static_cast<double>(BytesOf("")) + lost);
  }

  const StageReport* HeaviestFetch() const {
    const StageReport* heaviest = nullptr;
    for (const StageReport& stage : report_.stages) {
      if (stage.stage != Stage::kFetch) continue;
      if (heaviest == nullptr || stage.busy > heaviest->busy) heaviest = &stage;
    }
    return heaviest;
  }

  // What this end waited for, where no end recorded it, as shares of the time: `waited` for bytes on a link,
  // `waited_to_read` for a disk, an object store or memory.
  void AddWaiting(double waited, double waited_to_read) {
    const StageReport* const heaviest = HeaviestFetch();
    if (heaviest == nullptr) return;
    const SourceInfo& source = heaviest->source;
    if (source.type != SourceType::kRemote || source.lane == kLocalLane) {
      const std::string_view name = source.type != SourceType::kDisk ? "memory"
                                    : source.lane == kDiskLane       ? "disk"
                                                                     : "object store";
      return Add(name, source.grant_id, waited_to_read, "");  // the stage says what would help
    }
    const auto found = std::ranges::find(details_, source.grant_id, &SourceDetails::grant_id);
    const std::string doubt =
        found == details_.end() ? absl::StrCat(source.name, " was not asked") : DoubtOf(*found);
    if (!doubt.empty()) {
      return Add("unknown", source.grant_id, waited,
                 absl::StrCat("The cause of the wait is unknown: this node waited for bytes for ",
                              Percent(waited), " of the time, and ", doubt, "."));
    }
    AddLinks(waited, source.grant_id);
  }

  // Had a link been faster, its source would have sent until its threads, its limit or this end had no more
  // time. Of several sources each link counts for what it is slower than the fastest one; what is left beside
  // everything that is known of single sources is that of the `heaviest`.
  void AddLinks(double waited, std::string_view heaviest) {
    uint64_t fastest = 0;
    uint64_t all = 0;
    size_t sources = 0;
    double idle = 0;  // of the sources' time, by their bytes
    for (const SourceDetails& detail : details_) {
      const std::optional<Account> account = AccountOf(detail);
      if (!account.has_value()) continue;
      ++sources;
      all += account->bytes;
      fastest = std::max(fastest, account->bytes);
      idle += IdleOf(*account) * static_cast<double>(account->bytes);
    }
    if (sources == 0) return;
    const double share = std::min(waited, moving_ * idle / static_cast<double>(all));
    if (sources == 1) return AddLink(heaviest, share, share);
    for (const SourceDetails& detail : details_) {
      const std::optional<Account> account = AccountOf(detail);
      if (!account.has_value() || detail.grant_id == heaviest) continue;
      const double slower =
          1 - static_cast<double>(account->bytes) / (static_cast<double>(fastest) * Runs(*account));
      const double cost = CostOf(std::min(slower, IdleOf(*account)), account->bytes);
      of_sources_ += cost;
      AddLink(detail.grant_id, std::min(cost, waited), waited);
    }
    AddLink(heaviest, share - of_sources_, waited);
  }

  // Of the time in which it could run, what its threads and its limit leave.
  double IdleOf(const Account& account) const {
    const double runs = Runs(account);
    const double busy = std::max(account.working + account.no_cpu, account.reading);
    return std::max(1 - OfTheRest(busy, runs) - OfTheRest(account.limiter, runs), 0.0);
  }

  void AddLink(std::string_view grant_id, double share, double waited) {
    Add("network", grant_id, share,
        absl::StrCat("The source had the bytes ready, and this node waited for bytes for ", Percent(waited),
                     " of the time: the network is the limit. A faster link or lane, or a nearer source, ",
                     "would help."));
  }

  // Why the source's account does not prove that the network was waited for; empty: it does.
  std::string DoubtOf(const SourceDetails& detail) const {
    const std::optional<WallTime> time = TimeOf(detail);
    if (!detail.served.has_value()) return absl::StrCat(detail.source, " gave no report: ", detail.problem);
    if (!time.has_value()) return absl::StrCat(detail.source, " did not record its time");
    const uint64_t got = BytesOf(detail.grant_id);
    const uint64_t sent = detail.served->bytes();
    if (static_cast<double>(sent) < kSameBytes * static_cast<double>(got)) {
      return absl::StrCat(detail.source, " reports that it sent ", cli::FormatBytes(sent), " of the ",
                          cli::FormatBytes(got), " that arrived");
    }
    // That it had no request for most of the time does not contradict this: what it had sent was on its way.
    return "";
  }

  const TransferReport& report_;
  const std::vector<SourceDetails>& details_;
  const absl::Duration total_;
  const double moving_;  // share of the time
  const WallTime& own_;
  std::vector<Cause> causes_;
  double of_sources_ = 0;  // what single sources cost together
};

}  // namespace

Cause CauseOfStart(const TransferReport& report, absl::Duration total, absl::Duration start) {
  // A transfer that advances a replica also waits for staging memory later: the start does not include that.
  const double share = std::min(SpaceShare(report, total), Ratio(start, total));
  if (share * 2 < Ratio(start, total) || share <= 0) return {};
  return {.name = "space", .share = share, .why = EndWhy("space", kThisNode, share, "the time", "")};
}

Cause FindCause(const TransferReport& report, absl::Duration total, absl::Duration moving, Stage stage,
                const std::vector<SourceDetails>& details) {
  return Causes(report, total, moving, details).Largest(stage);
}

}  // namespace tensorcast::explain
