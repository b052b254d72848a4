#include "cli/explain/cause.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/wall_time.h"
#include "cli/output/output.h"
#include "rpc/convert/convert.h"

namespace tensorcast::explain {
namespace {

constexpr std::string_view kThisNode = "this node";
// A share this close to all of the time has no sensible inverse.
constexpr double kMaxShare = 0.98;
// Chunks under way when a pull ends are counted by one end and not by the other.
constexpr double kSameBytes = 0.9;
// A limit that held bytes back for less of the time than this was not what set the pace.
constexpr double kBindingLimit = 0.2;

double Ratio(absl::Duration part, absl::Duration whole) {
  return whole <= absl::ZeroDuration() ? 0 : std::clamp(absl::FDivDuration(part, whole), 0.0, 1.0);
}

std::string Percent(double share) { return absl::StrFormat("%.0f %%", share * 100); }

// What a node could not run for, or was held back by. `of`: what `share` is a part of.
std::string EndWhy(std::string_view name, std::string_view node, double share, std::string_view of,
                   std::string_view limit) {
  if (name == "stopped") {
    return absl::StrCat("No thread of ", node, " ran for ", Percent(share), " of ", of,
                        ": SIGSTOP, a debugger, or a frozen container or virtual machine. Let it run.");
  }
  if (name == "no cpu") {
    return absl::StrCat("The busiest thread of ", node, " wanted a CPU and had none for ", Percent(share),
                        " of ", of, ". Fewer other programs on its host, or more CPUs for it, would help.");
  }
  if (name == "limiter") {
    return absl::StrCat(limit, " of ", node, " held the bytes back for ", Percent(share), " of ", of,
                        ". A higher limit would help; a faster lane would not.");
  }
  return absl::StrCat("The busiest thread of ", node, " ran for ", Percent(share), " of ", of,
                      ". Faster cores, or a lane that needs less of them, would help.");
}

// What a source recorded of itself; null: nothing.
std::optional<WallTime> TimeOf(const SourceDetails& detail) {
  if (!detail.served.has_value()) return std::nullopt;
  const WallTime time = rpc::FromProto(detail.served->wall_time());
  return time.whole > absl::ZeroDuration() ? std::make_optional(time) : std::nullopt;
}

class Causes {
 public:
  Causes(const TransferReport& report, absl::Duration total, absl::Duration moving,
         const std::vector<SourceDetails>& details)
      : report_(report),
        details_(details),
        total_(total),
        moving_(Ratio(moving, total)),
        own_(report.wall_time) {}

  // The causes in the order in which the ends can prove them. `explained_` sums their shares, and AddRest
  // gives what is left to the cores or to the way between.
  Cause Largest(Stage stage) {
    if (own_.whole <= absl::ZeroDuration() || total_ <= absl::ZeroDuration()) return {};
    AddOwn("stopped", TimeUse::kStopped);
    AddOwn("no cpu", TimeUse::kNoCpu);
    if (stage != Stage::kFetch) return MajorityCause();
    AddOwn("limiter", TimeUse::kLimiter);
    for (const SourceDetails& detail : details_) {
      if (!detail.mapped) AddSource(detail);
    }
    // Too short for figures of threads: what is left may be work as well as waiting.
    if (own_[TimeUse::kWorking] + own_[TimeUse::kNoCpu] <= absl::ZeroDuration()) return MajorityCause();
    AddRest();
    return Max();
  }

 private:
  uint64_t BytesOf(std::string_view grant_id) const {
    uint64_t bytes = 0;
    for (const StageReport& stage : report_.stages) {
      const bool wanted = grant_id.empty() || stage.source.grant_id == grant_id;
      if (stage.stage == Stage::kFetch && wanted) bytes += stage.bytes;
    }
    return bytes;
  }

  void Add(std::string_view name, std::string_view grant_id, double share, std::string why) {
    Cause& cause = causes_.emplace_back();
    cause.name = name;
    cause.grant_id = grant_id;
    cause.share = share;
    cause.why = std::move(why);
    (grant_id.empty() ? own_explained_ : sources_explained_) += share;
  }

  // Of `whole`: what a limit cost that held bytes back for the share `held`. A limit that sets the pace does
  // so all the time: what moves between two waits is what the limit lets through. Without it the transfer
  // would take what the busiest threads of the two ends need.
  double LimiterShare(double held, double whole) const {
    if (held < kBindingLimit) return held;
    double needed = Ratio(own_[TimeUse::kWorking] + own_[TimeUse::kNoCpu] + own_[TimeUse::kStopped], total_);
    for (const SourceDetails& detail : details_) {
      const std::optional<WallTime> time = detail.mapped ? std::nullopt : TimeOf(detail);
      if (!time.has_value()) continue;
      needed = std::max(needed, time->Share(TimeUse::kWorking) + time->Share(TimeUse::kNoCpu) +
                                    time->Share(TimeUse::kStopped));
    }
    return std::max(held, whole - needed);
  }

  Cause Max() const {
    const auto max = std::ranges::max_element(causes_, {}, &Cause::share);
    return max == causes_.end() ? Cause() : *max;
  }

  // Where not every candidate is among them, only what took more than half of the time is sure to be the
  // largest.
  Cause MajorityCause() const {
    Cause cause = Max();
    return cause.share > 0.5 ? cause : Cause();
  }

  void AddOwn(std::string_view name, TimeUse use) {
    const double recorded = Ratio(own_[use], total_);
    const double share = use == TimeUse::kLimiter ? LimiterShare(recorded, moving_) : recorded;
    if (share <= 0) return;
    Add(name, "", share, EndWhy(name, kThisNode, recorded, "the time", "daemon.limits.receive"));
  }

  // Shares of a source are of all the time that it served: time that it loses without a request costs
  // nothing.
  void AddSource(const SourceDetails& detail) {
    const std::optional<WallTime> time = TimeOf(detail);
    const uint64_t bytes = BytesOf(detail.grant_id);
    if (!time.has_value() || bytes == 0) return;
    double left = 1;
    const auto add = [&](std::string_view name, double share, std::string why) {
      share = std::clamp(share, 0.0, left);
      left -= share;
      if (share > 0) Add(name, detail.grant_id, CostOf(share, bytes), std::move(why));
    };
    for (const auto& [name, use] :
         {std::pair("stopped", TimeUse::kStopped), std::pair("no cpu", TimeUse::kNoCpu),
          std::pair("limiter", TimeUse::kLimiter)}) {
      const double recorded = time->Share(use);
      const double share = use == TimeUse::kLimiter ? LimiterShare(recorded, 1) : recorded;
      add(name, share,
          EndWhy(name, detail.source, recorded, "the time that it served", "daemon.limits.send"));
    }
    const double reading = std::min(ReadingShare(detail), 1.0);
    add("reading", reading,
        absl::StrCat("The source is the limit: ", detail.source, " read its GPU or disk for ",
                     Percent(reading), " of the time that it served. One that has the artifact in host ",
                     "memory would help."));
    const uint64_t others = detail.served->other_bytes();
    const double of_others =
        static_cast<double>(others) / (static_cast<double>(others) + static_cast<double>(bytes));
    add("other receivers", of_others * left,
        absl::StrCat(
            detail.source, " sent ", cli::FormatBytes(others),
            " to other receivers meanwhile. Another source, or fewer receivers at once, would help."));
    if (const double ran = std::min(time->Share(TimeUse::kWorking), left); ran > cores_) {
      cores_ = ran;
      cores_at_ = &detail;
    }
  }

  // What a source that lost this share of its time cost the transfer. Without the loss of a share f it would
  // have sent f / (1 - f) times as many bytes more; the cost is the part of these in all bytes, theirs
  // included.
  double CostOf(double share, uint64_t bytes) const {
    const double f = std::min(share, kMaxShare);
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

  // The busiest core of the two ends, and what passed without it.
  void AddRest() {
    // A core may be busy while something else at its end holds the bytes back: it counts for what that
    // leaves.
    const double own_cores =
        std::min(Ratio(own_[TimeUse::kWorking], total_), std::max(moving_ - own_explained_, 0.0));
    const double cores = std::min(cores_ * moving_, std::max(moving_ - sources_explained_, 0.0));
    // The two ends work at the same time, so what passed between them is what the busier one leaves.
    const double rest = moving_ - std::max(own_explained_ + own_cores, sources_explained_ + cores);
    if (own_cores >= cores) {
      Add("cores", "", own_cores, EndWhy("cores", kThisNode, own_cores, "the time", ""));
    } else {
      Add("cores", cores_at_->grant_id, cores,
          EndWhy("cores", cores_at_->source, cores_, "the time that it served", ""));
    }
    const StageReport* const heaviest = HeaviestFetch();
    if (heaviest == nullptr || rest <= 0) return;
    const SourceInfo& source = heaviest->source;
    if (source.type != SourceType::kRemote || source.lane == kLocalLane) {
      const std::string_view name = source.type != SourceType::kDisk ? "memory"
                                    : source.lane == kDiskLane       ? "disk"
                                                                     : "object store";
      return Add(name, source.grant_id, rest, "");  // the stage says what would help
    }
    const std::string waited = absl::StrCat("this node waited for bytes for ", Percent(rest), " of the time");
    if (const std::string doubt = DoubtOf(source); !doubt.empty()) {
      return Add("unknown", source.grant_id, rest,
                 absl::StrCat("What was waited for is unknown: ", waited, ", and ", doubt, "."));
    }
    Add("network", source.grant_id, rest,
        absl::StrCat("The source had the bytes ready, and ", waited,
                     ": the network is the limit. A faster link or lane, or a nearer source, would help."));
  }

  // Why the source's account does not prove that the network was waited for; empty: it does.
  std::string DoubtOf(const SourceInfo& source) const {
    const auto found = std::ranges::find(details_, source.grant_id, &SourceDetails::grant_id);
    if (found == details_.end()) return absl::StrCat(source.name, " was not asked");
    const SourceDetails& detail = *found;
    const std::optional<WallTime> time = TimeOf(detail);
    if (!detail.served.has_value()) return absl::StrCat(detail.source, " does not tell: ", detail.problem);
    if (!time.has_value()) return absl::StrCat(detail.source, " recorded nothing of it");
    const uint64_t got = BytesOf(detail.grant_id);
    const uint64_t sent = detail.served->bytes();
    if (static_cast<double>(sent) < kSameBytes * static_cast<double>(got)) {
      return absl::StrCat(detail.source, " says that it sent ", cli::FormatBytes(sent), " of the ",
                          cli::FormatBytes(got), " that came");
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
  double own_explained_ = 0;
  double sources_explained_ = 0;
  double cores_ = 0;  // of the source with the busiest one, of the time that it served
  const SourceDetails* cores_at_ = nullptr;
};

}  // namespace

Cause FindCause(const TransferReport& report, absl::Duration total, absl::Duration moving, Stage stage,
                const std::vector<SourceDetails>& details) {
  return Causes(report, total, moving, details).Largest(stage);
}

}  // namespace tensorcast::explain
