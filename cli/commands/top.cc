#include "cli/explain/top.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/notification.h"
#include "base/parallel.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "base/text.h"
#include "cli/commands/command.h"
#include "cli/commands/connect.h"
#include "cli/output/output.h"

namespace tensorcast::cli {
namespace {

struct TopFlags {
  bool once = false;  // print one frame and end
  absl::Duration interval = absl::Seconds(1);
};

using explain::NodeView;
using explain::TopView;

constexpr absl::Duration kNodeTimeout = absl::Seconds(2);
constexpr size_t kAskers = 16;
constexpr absl::Duration kVersionsEvery = absl::Seconds(5);
constexpr size_t kKeysShown = 3;

// Asks every node, each over a connection that is kept from one frame to the next.
class ClusterViewer {
 public:
  // `options` are those of `own`.
  ClusterViewer(std::unique_ptr<client::AdminClient> own, client::ClientOptions options)
      : own_(std::move(own)), options_(std::move(options)) {}

  // One frame: the nodes that the global store names, each with its own report where it gives one in time. An
  // error only when the daemon of this command does not answer.
  absl::StatusOr<TopView> Look() {
    TC_ASSIGN_OR_RETURN(const v1::GetStatusResponse own, own_->GetStatus(InterruptibleContext(kNodeTimeout)));
    TopView view;
    auto cluster = own_->GetClusterStatus(InterruptibleContext(kNodeTimeout));
    if (cluster.ok()) {
      for (const v1::Node& node : cluster->nodes()) view.nodes.push_back({.node = node});
      view.cluster = *std::move(cluster);
    } else {
      view.problem = std::string(cluster.status().message());
      view.nodes.push_back({.node = own.node()});
    }
    std::ranges::sort(view.nodes, {}, [](const NodeView& node) { return node.node.name(); });
    for (NodeView& node : view.nodes) {
      // The own daemon was asked already; it need not be reachable by its address.
      if (node.node.node_id() == own.node().node_id()) node.status = own;
      clients_.try_emplace(node.node.node_id());  // so that the askers find the map as it stays
    }
    AskAll(view.nodes);
    LookAtVersions(view);
    view.now = SteadyNow();
    // The frame gets what the previous one saw, and leaves what this one sees to the next.
    view.before = std::exchange(seen_, explain::SeenIn(view));
    return view;
  }

 private:
  // A few nodes at a time, so that those that do not answer cost one timeout, not one each.
  void AskAll(std::vector<NodeView>& nodes) {
    // The clients of all nodes are in the map before the threads begin, so that none of them changes the map.
    ForEachInParallel(nodes.size(), kAskers, [&](size_t i) {
      if (!nodes[i].status.has_value()) Ask(nodes[i], clients_.at(nodes[i].node.node_id()));
    });
  }

  // Listings cost the store more than a status: they are asked for now and then. Without them a frame has the
  // rest.
  void LookAtVersions(TopView& view) {
    if (view.cluster.has_value() && SteadyNow() - versions_at_ >= kVersionsEvery) {
      versions_at_ = SteadyNow();
      std::map<std::string, std::string> names;
      for (const NodeView& node : view.nodes) names[node.node.node_id()] = node.node.name();
      if (auto keys = AskVersions(names); keys.ok()) versions_ = *std::move(keys);
    }
    view.keys = versions_;
  }

  absl::StatusOr<std::vector<explain::KeyVersions>> AskVersions(
      const std::map<std::string, std::string>& names) {
    TC_ASSIGN_OR_RETURN(v1::ListKeysResponse listed, own_->ListKeys(InterruptibleContext(kNodeTimeout), ""));
    std::vector<v1::Key> keys(listed.keys().begin(), listed.keys().end());
    std::erase_if(keys, [](const v1::Key& key) { return key.earlier().empty(); });
    std::ranges::sort(keys, std::greater(), [](const v1::Key& key) {
      return std::pair(key.updated().seconds(), key.updated().nanos());
    });
    if (keys.size() > kKeysShown) keys.resize(kKeysShown);
    std::vector<explain::KeyVersions> result;
    for (const v1::Key& key : keys) {
      std::vector<v1::Artifact> artifacts;
      for (const v1::KeyVersion& version : explain::RevisionsOf(key)) {
        auto artifact = own_->DescribeArtifact(InterruptibleContext(kNodeTimeout), version.artifact_id());
        if (artifact.ok()) artifacts.push_back(*std::move(artifact));
        // One that was deleted meanwhile is on no node.
        if (!artifact.ok() && !absl::IsNotFound(artifact.status())) return artifact.status();
      }
      result.push_back(explain::VersionsOf(key, artifacts, names));
    }
    return result;
  }

  // Runs on an asker's thread. `client` belongs to this thread during the frame, so it needs no lock.
  void Ask(NodeView& node, std::unique_ptr<client::AdminClient>& client) {
    const absl::StatusOr<v1::GetStatusResponse> status = [&]() -> absl::StatusOr<v1::GetStatusResponse> {
      if (client == nullptr) {
        client::ClientOptions options = options_;
        options.daemon = node.node.grpc_address();
        options.connect_timeout = kNodeTimeout;
        TC_ASSIGN_OR_RETURN(client, client::AdminClient::Connect(options));
      }
      TC_ASSIGN_OR_RETURN(v1::GetStatusResponse answer,
                          client->GetStatus(InterruptibleContext(kNodeTimeout)));
      if (answer.node().node_id() == node.node.node_id()) return answer;
      return absl::FailedPreconditionError(absl::StrCat("address ", node.node.grpc_address(),
                                                        " belongs to node ", answer.node().name(), " now"));
    }();
    if (status.ok()) {
      node.status = *status;
    } else {
      // The next frame connects again.
      node.problem = std::string(status.status().message());
      client.reset();
    }
  }

  const std::unique_ptr<client::AdminClient> own_;
  const client::ClientOptions options_;
  std::map<std::string, std::unique_ptr<client::AdminClient>> clients_;  // by node id; one asker a node
  std::map<std::string, explain::Seen> seen_;                            // in the last frame
  std::vector<explain::KeyVersions> versions_;
  SteadyTime versions_at_ = SteadyTime::InfinitePast();
};

// The terminal's other screen, given back at the end. Without a terminal, frames follow each other.
class Screen {
 public:
  Screen() : terminal_(isatty(STDOUT_FILENO) != 0) {
    // Enters the alternate screen and hides the cursor; the destructor undoes both in the reverse order.
    if (terminal_) std::fputs("\033[?1049h\033[?25l", stdout);
  }
  ~Screen() {
    if (terminal_) std::fputs("\033[?25h\033[?1049l", stdout);
    std::fflush(stdout);
  }
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  void Show(const std::string& frame) {
    if (!terminal_) {
      std::printf("%s\n", frame.c_str());
    } else {
      // Drawn over the last frame from the corner, then the rest is erased: clearing first would flicker.
      std::printf("\033[H%s\033[J", Fit(frame).c_str());
    }
    std::fflush(stdout);
  }

 private:
  // No line wraps and nothing scrolls; what was longer in the last frame is erased.
  static std::string Fit(const std::string& frame) {
    winsize size{};
    const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 1 && size.ws_col > 1;
    std::vector<std::string> lines = absl::StrSplit(frame, '\n');
    if (known && lines.size() > size.ws_row) lines.resize(size.ws_row);
    for (std::string& line : lines) {
      if (known && line.size() > size.ws_col) line.resize(size.ws_col);
      line += "\033[K";
    }
    return absl::StrJoin(lines, "\n");
  }

  const bool terminal_;
};

std::string Json(const TopView& view) {
  std::vector<std::string> nodes;
  for (const NodeView& node : view.nodes) {
    v1::GetStatusResponse status;
    if (node.status.has_value()) status = *node.status;
    // The node as the global store describes it, also where the node itself gave no report.
    *status.mutable_node() = node.node;
    nodes.push_back(ToJson(status));
  }
  std::string json = absl::StrCat("{\"nodes\": [", absl::StrJoin(nodes, ", "), "]");
  if (view.cluster.has_value()) absl::StrAppend(&json, ", \"cluster\": ", ToJson(*view.cluster));
  return absl::StrCat(json, ", \"keys\": ", explain::VersionsJson(view.keys), "}\n");
}

// False when the user interrupted.
bool Pause(absl::Duration interval) {
  absl::Notification interrupted;
  const auto registration = OnTerminationSignal().OnCancel([&] { interrupted.Notify(); });
  return !interrupted.WaitForNotificationWithTimeout(interval);
}

absl::Status Top(const CommonFlags& common, const TopFlags& flags) {
  TC_ASSIGN_OR_RETURN(client::ClientOptions options, ConfiguredClient(common));
  TC_ASSIGN_OR_RETURN(auto own, client::AdminClient::Connect(options));
  ClusterViewer viewer(std::move(own), std::move(options));
  TC_ASSIGN_OR_RETURN(TopView view, viewer.Look());
  if (common.json || flags.once) {
    common.json ? (void)std::fputs(Json(view).c_str(), stdout) : Print(explain::RenderTop(view));
    return absl::OkStatus();
  }
  Screen screen;
  do {
    screen.Show(Printable(explain::RenderTop(view), /*keep_lines=*/true));
    if (!Pause(flags.interval)) break;
    absl::StatusOr<TopView> next = viewer.Look();
    // An interrupt cancels the calls of this frame too. That is the end the user asked for, and not an error.
    if (OnTerminationSignal().IsCancelled()) break;
    TC_RETURN_IF_ERROR(next.status());
    view = *std::move(next);
  } while (true);
  return absl::OkStatus();
}

void AddFlags(Flags& flags, TopFlags& values) {
  flags.Add("--once", values.once, "Print one frame and exit");
  flags.Add("--interval", values.interval, "Time between frames",
            {.show_default = true, .min = 0.1, .max = 3600});
}

int RunTop(const CommonFlags& common, const TopFlags& flags) { return EndlessExitCode(Top(common, flags)); }

}  // namespace

Command TopCommand() {
  return {.name = "top",
          .help = "Watch the cluster: pools, throughput, transfers",
          .bind = Bind(AddFlags, RunTop)};
}

}  // namespace tensorcast::cli
