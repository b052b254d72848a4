#include "tests/scale/fan_out/scenarios.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <span>

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/artifact/layout.h"

namespace tensorcast::fan_out {
namespace {

constexpr int kRack = 40;  // nodes
constexpr double kSlower = 10;
constexpr int kFew = 16;
constexpr double kOfDisk = 0.25;   // of a link: what a disk gives
constexpr double kOfTcp = 0.25;    // and what a node sends over the slower lane
constexpr double kOverNvlink = 9;  // times as fast as from host memory over PCIe 5.0 (450 and 50 GB/s)

double AllBytes(const Plan& plan) { return static_cast<double>(plan.image_bytes) * plan.images; }
// Of all images over one link.
double CopyTime(const Plan& plan) { return AllBytes(plan) / plan.nodes.front().rate; }
double FullRate(const Plan& plan) { return plan.nodes.front().rate; }

}  // namespace

std::vector<std::string> ScenarioNames() {
  return {"at once",
          "slow nodes",
          "crashes",
          "random arrivals",
          "0.5 s apart",
          "thin racks",
          "source killed",
          "store away",
          "silent slow nodes",
          "hosts",
          "host stops",
          "two images",
          "zones",
          "zones without labels",
          "zones with crashes",
          "mixed rates",
          "silent mixed rates",
          "cold",
          "cold with crashes",
          "sources hang",
          "parts",
          "draining",
          "disks",
          "two lanes",
          "GPUs of a host"};
}

Scenario MakeScenario(std::string_view name, int nodes, uint64_t seed) {
  const bool few = nodes <= kFew;
  std::mt19937_64 random(seed);
  const auto fraction = [&random] { return static_cast<double>(random() % 1'000'000) / 1e6; };
  Scenario scenario{.max_time = few ? 1.2 : 1.3};
  Plan& plan = scenario.plan;
  plan.name = absl::StrCat(name, ", ", nodes, " nodes");
  plan.seed = seed;
  plan.image_bytes = few ? 264'000'000 : 4'000'000'000;
  plan.chunk_bytes = ChunkBytesOf(plan.image_bytes);
  plan.step = few ? 1e-3 : 10e-3;
  plan.nodes.assign(nodes, {.rate = few ? 400e6 / 8 : 10e9 / 8});
  plan.nodes.front().has_images = true;
  const double copy = CopyTime(plan);
  const auto receivers = std::span(plan.nodes).subspan(1);
  // Beside the first node, in some scenarios.
  const auto also_have = name == "sources hang" || name == "parts" || name == "draining" || name == "disks"
                             ? receivers.first(name == "parts" ? (nodes - 1) / 2 : nodes / 4)
                             : receivers.first(0);
  for (NodePlan& node : also_have) node.has_images = true;
  if (name == "slow nodes" || name == "silent slow nodes") {
    scenario.max_time = few ? 1.3 : name == "slow nodes" ? 1.4 : 1.8;
    for (size_t i = 0; i < receivers.size(); i += 20) receivers[i].rate /= kSlower;
    for (NodePlan& node : plan.nodes) node.says_rate = name == "slow nodes";
  } else if (name == "crashes") {
    scenario.max_time = 1.5;
    for (size_t i = few ? 2 : 50; i < receivers.size(); i += 100) receivers[i].crashes = copy * fraction();
  } else if (name == "random arrivals") {
    for (NodePlan& node : receivers) node.arrives = 2 * copy * fraction();
    if (few) scenario.max_time = 1.3;
  } else if (name == "0.5 s apart") {
    scenario.max_time = 1.25;
    for (size_t i = 0; i < receivers.size(); ++i) receivers[i].arrives = 0.5 * static_cast<double>(i);
  } else if (name == "thin racks") {
    // Each rack's uplink carries an eighth of what its nodes' links could, but what one of them could at
    // least.
    scenario.max_time = 2;
    const int rack = few ? 4 : kRack;
    plan.group_rate = FullRate(plan) * std::max(1, rack / 8);
    for (int node = 0; node < nodes; ++node) plan.nodes[node].group = node / rack;
  } else if (name == "source killed") {
    scenario.max_time = 1.6;
    plan.nodes.front().crashes_when_given = true;
  } else if (name == "store away") {
    scenario.max_time = 1.4;
    plan.store_away_from = copy / 4;
    plan.store_away_until = copy / 4 + 10;
  } else if (name == "hosts" || name == "host stops") {
    // All of a host ask before any of them is known to fill. The one that pulls for all may stop on the way.
    const int mates = few ? 4 : 8;
    for (int node = 0; node < nodes; ++node) plan.nodes[node].host = node / mates;
    plan.host_rate = 20e9;
    plan.report = 5e-3;
    if (name == "host stops") {
      plan.nodes[nodes - mates].stops = copy / 4;
      scenario.max_time += few ? 0.5 : 1.0;
    }
  } else if (name.starts_with("zones")) {
    // Of two zones, or eight, each uplink carries what the link of one node could.
    const int zones = few ? 2 : 8;
    plan.group_rate = FullRate(plan);
    plan.group_label = name == "zones without labels" ? "" : "zone";
    scenario.max_time = few ? 2.2 : name == "zones without labels" ? 100 : 4;
    for (int node = 0; node < nodes; ++node) plan.nodes[node].group = node * zones / nodes;
    for (int node = 1; node < nodes && name == "zones with crashes"; ++node) {
      const bool first = plan.nodes[node].group != plan.nodes[node - 1].group;
      if (first) plan.nodes[node].crashes = copy * fraction();
    }
  } else if (name == "mixed rates" || name == "silent mixed rates") {
    const bool silent = name == "silent mixed rates";
    scenario.max_time = silent && !few ? 1.4 : 1.3;
    constexpr double kShares[] = {1, 0.4, 0.1};  // as 200, 80 and 20 Mbit/s
    for (size_t i = 0; i < receivers.size(); ++i) receivers[i].rate *= kShares[i % std::size(kShares)];
    for (NodePlan& node : plan.nodes) node.says_rate = !silent;
  } else if (name == "cold" || name == "cold with crashes") {
    // No node has it: the first is an object store, with the link of one node.
    scenario.max_time = few ? 1.3 : 1.5;
    plan.nodes.front().is_object_store = true;
    for (size_t i = 1; i < receivers.size() && name == "cold with crashes"; i += few ? 5 : 20) {
      receivers[i].crashes = copy * fraction();
    }
  } else if (name == "sources hang") {
    // A small image, so that what a receiver loses to a source that does not answer is much of its time.
    scenario.max_time = 1.8;
    plan.image_bytes /= 10;
    plan.chunk_bytes = ChunkBytesOf(plan.image_bytes);
    for (NodePlan& node : also_have) node.stops = 0;
    const auto later = receivers.subspan(also_have.size());
    for (size_t i = 0; i < later.size(); ++i) later[i].arrives = 0.2 * static_cast<double>(i);
  } else if (name == "parts") {
    // Half of the image is beside each receiver but the last, in a part that no transfer completes.
    plan.host_rate = 20e9;
    for (size_t i = 0; i < also_have.size(); ++i) {
      also_have[i].part = 0.5;
      also_have[i].host = receivers[also_have.size() + i].host = static_cast<int>(i);
    }
  } else if (name == "draining") {
    for (NodePlan& node : also_have) node.drains = true;
  } else if (name == "disks") {
    for (NodePlan& node : also_have) {
      node.place = LocationKind::kDisk;
      node.place_rate = kOfDisk * FullRate(plan);
    }
  } else if (name == "two lanes") {
    scenario.max_time = few ? 1.3 : 1.5;
    plan.tcp_rate = kOfTcp * FullRate(plan);
    for (int node = 0; node < nodes; ++node) {
      if (node % 3 != 2) plan.nodes[node].lanes = {"ucx", "tcp"};
    }
  } else if (name == "GPUs of a host") {
    // One after another wants it on a GPU of its own. The first has it in host memory, the second on a GPU.
    scenario.max_time = 0.2;
    plan.destination = LocationKind::kGpu;
    plan.sources = 1;  // what is whole on the receiver's host is read alone
    plan.nodes.front().place_rate = FullRate(plan);
    plan.nodes[1].has_images = true;
    for (int node = 0; node < nodes; ++node) {
      plan.nodes[node].host = 0;
      if (node > 0) plan.nodes[node].place = LocationKind::kGpu;
      if (node > 0) plan.nodes[node].place_rate = kOverNvlink * FullRate(plan);
      if (node > 1) plan.nodes[node].arrives = 2 * copy * (node - 2);
    }
  } else if (name == "two images") {
    plan.images = 2;
  } else {
    CHECK_EQ(name, "at once");
  }
  return scenario;
}

std::vector<double> TimesOf(const Plan& plan, const RunResult& result) {
  std::vector<double> times;
  for (size_t i = 0; i < plan.nodes.size(); ++i) {
    const NodePlan& node = plan.nodes[i];
    if (node.has_images || node.rate < FullRate(plan) || node.lanes != plan.nodes.front().lanes) continue;
    for (int image = 0; image < plan.images; ++image) {
      const double took = result.replicas[i * plan.images + image].took;
      if (took < kNever) times.push_back(took / CopyTime(plan));
    }
  }
  std::ranges::sort(times);
  return times;
}

std::vector<double> ImagesOverTheWire(const Plan& plan, const RunResult& result) {
  std::map<int, double> images;  // by host; those that are alone on theirs have numbers below 0
  for (int node = 0; node < static_cast<int>(plan.nodes.size()); ++node) {
    const int host = plan.nodes[node].host >= 0 ? plan.nodes[node].host : -1 - node;
    for (int image = 0; image < plan.images; ++image) {
      images[host] +=
          static_cast<double>(result.replicas[node * plan.images + image].wire_bytes) / AllBytes(plan);
    }
  }
  std::vector<double> of_hosts;
  for (const auto& [host, of_host] : images) of_hosts.push_back(of_host);
  return of_hosts;
}

std::vector<double> ImagesIntoGroups(const Plan& plan, const RunResult& result) {
  std::map<int, double> images;  // by group
  for (size_t i = 0; i < result.replicas.size(); ++i) {
    images[plan.nodes[i / plan.images].group] +=
        static_cast<double>(result.replicas[i].group_bytes) / AllBytes(plan);
  }
  std::vector<double> of_groups;
  for (const auto& [group, of_group] : images) of_groups.push_back(of_group);
  return of_groups;
}

double ImagesOfDrainingNodes(const Plan& plan, const RunResult& result) {
  double images = 0;
  for (size_t i = 0; i < result.replicas.size(); ++i) {
    if (!plan.nodes[i / plan.images].drains) continue;
    images += static_cast<double>(result.replicas[i].given_bytes) / AllBytes(plan);
  }
  return images;
}

std::string TableHead() {
  return "| fan-out | median | 99 of 100 | last | at most | failed | source gave | requests at most | "
         "directory, us a request |\n"
         "|---|---|---|---|---|---|---|---|---|\n";
}

std::string TableRow(const Scenario& scenario, const RunResult& result) {
  const Plan& plan = scenario.plan;
  const std::vector<double> times = TimesOf(plan, result);
  CHECK(!times.empty()) << plan.name << ": no receiver is done";
  int failed = 0;
  uint32_t requests = 0;
  for (const ReplicaResult& replica : result.replicas) {
    failed += replica.failed ? 1 : 0;
    requests = std::max(requests, replica.requests);
  }
  double gave = 0;  // the first node, of each image
  for (int image = 0; image < plan.images; ++image) {
    gave += static_cast<double>(result.replicas[image].given_bytes) / AllBytes(plan);
  }
  std::string fan_out = plan.name;
  const std::vector<double> images = ImagesIntoGroups(plan, result);
  if (images.size() > 1) {
    // The first node's group needs none.
    const double sum = std::accumulate(images.begin(), images.end(), 0.0);
    absl::StrAppendFormat(&fan_out, " (%.2f images over an uplink, at most %.2f)",
                          sum / static_cast<double>(images.size() - 1), std::ranges::max(images));
  }
  if (std::ranges::any_of(plan.nodes, &NodePlan::drains)) {
    absl::StrAppendFormat(&fan_out, " (%.2f images of draining nodes)", ImagesOfDrainingNodes(plan, result));
  }
  return absl::StrFormat("| %s | %.2f | %.2f | %.2f | %.2f | %d | %.2f | %d | %.0f |\n", fan_out,
                         times[times.size() / 2], times[times.size() * 99 / 100], times.back(),
                         scenario.max_time, failed, gave, requests, result.directory_mean_us);
}

std::string Plot(const std::vector<std::pair<std::string, std::vector<double>>>& runs) {
  constexpr double kWidth = 640;
  constexpr double kHeight = 360;
  constexpr double kMargin = 40;
  constexpr const char* kColours[] = {"#1b6ca8", "#d1495b", "#3a7d44", "#e08e0b",
                                      "#6a4c93", "#00798c", "#8d6a4f", "#444444"};
  double last = 1;
  for (const auto& [name, times] : runs) last = std::max(last, times.empty() ? 0 : times.back());
  const auto x = [&](double time) { return kMargin + (kWidth - 2 * kMargin) * time / last; };
  const auto y = [&](double part) { return kHeight - kMargin - (kHeight - 2 * kMargin) * part; };
  std::string svg = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" font-family=\"sans-serif\" "
      "font-size=\"11\">\n"
      "<path d=\"M%.0f %.0f V%.0f H%.0f\" fill=\"none\" stroke=\"#888\"/>\n",
      kWidth, kHeight, kMargin, kMargin, y(0), kWidth - kMargin);
  for (double tick = 0; tick <= last; tick += 0.5) {
    absl::StrAppendFormat(&svg, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%.1f</text>\n", x(tick),
                          y(0) + 15, tick);
  }
  absl::StrAppendFormat(
      &svg,
      "<text x=\"%.0f\" y=\"%.0f\">receivers that are done, by their own time in times of one copy</text>\n",
      kMargin, kMargin - 10);
  for (size_t run = 0; run < runs.size(); ++run) {
    const auto& [name, times] = runs[run];
    const char* colour = kColours[run % std::size(kColours)];
    std::string path = absl::StrFormat("M%.1f %.1f", x(0), y(0));
    const size_t every = std::max<size_t>(1, times.size() / 200);
    for (size_t i = 0; i < times.size(); i += every) {
      absl::StrAppendFormat(&path, " H%.1f V%.1f", x(times[i]),
                            y(static_cast<double>(i + 1) / static_cast<double>(times.size())));
    }
    if (!times.empty()) absl::StrAppendFormat(&path, " H%.1f V%.1f", x(times.back()), y(1));
    absl::StrAppendFormat(&svg,
                          "<path d=\"%s\" fill=\"none\" stroke=\"%s\" stroke-width=\"1.5\"/>\n<text "
                          "x=\"%.0f\" y=\"%.0f\" fill=\"%s\">%s</text>\n",
                          path, colour, kMargin + 10, kMargin + 14 * static_cast<double>(run + 1), colour,
                          name);
  }
  return svg + "</svg>\n";
}

}  // namespace tensorcast::fan_out
