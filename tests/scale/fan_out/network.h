// Links and the flows over them, each flow with its share of every link on its way: what a switched network
// with fair flow control gives. Rates are set for all flows at once, by Share; between two calls a flow that
// starts takes what its links have to spare and one that stops gives back what it had.
//
// Shares are max-min fair: no flow can have more without taking from one that has no more than it. Share
// fixes in each round the flows of all links that are the narrowest of all their flows, and after kRounds of
// them gives the others the share of their narrowest link as it is then. ExactRates is what that is compared
// with.
//
// Thread-compatible.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace tensorcast::fan_out {

class Network {
 public:
  using Link = int32_t;
  using Flow = int32_t;
  static constexpr Link kNoLink = -1;
  using Way = std::array<Link, 4>;  // kNoLink where it has fewer

  Link AddLink(double bytes_per_second);
  // It has stopped.
  Flow AddFlow(const Way& way);
  void Start(Flow flow);
  void Stop(Flow flow);
  void Share();

  double rate(Flow flow) const { return flows_[flow].rate; }  // bytes a second
  const std::vector<Flow>& running() const { return running_; }

  // Of the running flows in their order, by filling one link after another. Slow.
  std::vector<double> ExactRates() const;

 private:
  static constexpr int kRounds = 16;
  struct LinkState {
    double capacity = 0;
    double spare = 0;       // that no flow has
    double unfixed = 0;     // flows, while Share runs
    double share = 0;       // of each of those
    bool narrowest = true;  // of all of them
  };
  struct FlowState {
    Way way;
    double rate = 0;
    int32_t place = -1;  // in running_; -1: stopped
    bool fixed = false;
  };
  template <typename Use>
  void ForLinks(const FlowState& flow, Use use) {
    for (const Link link : flow.way) {
      if (link != kNoLink) use(links_[link]);
    }
  }

  std::vector<LinkState> links_;
  std::vector<FlowState> flows_;
  std::vector<Flow> running_;
};

}  // namespace tensorcast::fan_out
