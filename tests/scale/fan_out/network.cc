#include "tests/scale/fan_out/network.h"

#include <algorithm>
#include <limits>

namespace tensorcast::fan_out {
namespace {

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

}  // namespace

Network::Link Network::AddLink(double bytes_per_second) {
  links_.push_back({.capacity = bytes_per_second, .spare = bytes_per_second});
  return static_cast<Link>(links_.size()) - 1;
}

Network::Flow Network::AddFlow(const Way& way) {
  flows_.push_back({.way = way});
  return static_cast<Flow>(flows_.size()) - 1;
}

void Network::Start(Flow flow) {
  FlowState& started = flows_[flow];
  if (started.place >= 0) return;
  started.place = static_cast<int32_t>(running_.size());
  running_.push_back(flow);
  // The new flow takes only what no other flow uses, which may be 0. So the rates of all other flows hold
  // until the next Share.
  started.rate = kNoLimit;
  ForLinks(started,
           [&](LinkState& link) { started.rate = std::min(started.rate, std::max(link.spare, 0.0)); });
  ForLinks(started, [&](LinkState& link) { link.spare -= started.rate; });
}

void Network::Stop(Flow flow) {
  FlowState& stopped = flows_[flow];
  if (stopped.place < 0) return;
  ForLinks(stopped, [&](LinkState& link) { link.spare += stopped.rate; });
  stopped.rate = 0;
  flows_[running_.back()].place = stopped.place;
  running_[stopped.place] = running_.back();
  running_.pop_back();
  stopped.place = -1;
}

// Progressive filling in rounds. A link's share is its spare rate, divided by its flows that are not fixed. A
// link is narrowest when each of its unfixed flows has no link with a smaller share. The flows of such a link
// cannot get more than that share, so the round fixes them all. The last round fixes what is left.
void Network::Share() {
  for (LinkState& link : links_) {
    link.spare = link.capacity;
    link.unfixed = 0;
  }
  for (const Flow flow : running_) {
    flows_[flow].fixed = false;
    ForLinks(flows_[flow], [](LinkState& link) { ++link.unfixed; });
  }
  size_t unfixed = running_.size();
  auto narrowest_share = [&](const FlowState& flow) {
    double share = kNoLimit;
    ForLinks(const_cast<FlowState&>(flow), [&](LinkState& link) { share = std::min(share, link.share); });
    return share;
  };
  for (int round = 0; round <= kRounds && unfixed > 0; ++round) {
    for (LinkState& link : links_) {
      // Rounding may leave a spare rate slightly below 0.
      link.share = link.unfixed > 0 ? std::max(link.spare, 0.0) / link.unfixed : kNoLimit;
      link.narrowest = true;
    }
    for (const Flow flow : running_) {
      FlowState& state = flows_[flow];
      if (state.fixed) continue;
      const double share = narrowest_share(state);
      ForLinks(state, [&](LinkState& link) { link.narrowest &= link.share <= share; });
    }
    for (const Flow flow : running_) {
      FlowState& state = flows_[flow];
      if (state.fixed) continue;
      bool fix = round == kRounds;
      ForLinks(state, [&](LinkState& link) { fix |= link.narrowest; });
      if (!fix) continue;
      state.rate = narrowest_share(state);
      state.fixed = true;
      --unfixed;
    }
    // What is fixed now was fixed by the shares at the round's beginning, so the links are brought up to date
    // after all of it.
    for (LinkState& link : links_) {
      link.spare = link.capacity;
      link.unfixed = 0;
    }
    for (const Flow flow : running_) {
      const FlowState& state = flows_[flow];
      ForLinks(state, [&](LinkState& link) {
        if (state.fixed) {
          link.spare -= state.rate;
        } else {
          ++link.unfixed;
        }
      });
    }
  }
}

// One link at a time: fixes the flows of the link with the smallest share, takes their rates from the other
// links on their way, and repeats. A round per link, where Share fixes many links in each round.
std::vector<double> Network::ExactRates() const {
  std::vector<double> rates(running_.size(), -1);
  std::vector<double> left;
  for (const LinkState& link : links_) left.push_back(link.capacity);
  for (;;) {
    std::vector<int> flows(links_.size(), 0);
    for (size_t i = 0; i < running_.size(); ++i) {
      if (rates[i] >= 0) continue;
      for (const Link link : flows_[running_[i]].way) {
        if (link != kNoLink) ++flows[link];
      }
    }
    Link narrowest = kNoLink;
    for (Link link = 0; link < static_cast<Link>(links_.size()); ++link) {
      if (flows[link] == 0) continue;
      if (narrowest == kNoLink || left[link] / flows[link] < left[narrowest] / flows[narrowest]) {
        narrowest = link;
      }
    }
    if (narrowest == kNoLink) return rates;
    const double share = left[narrowest] / flows[narrowest];
    for (size_t i = 0; i < running_.size(); ++i) {
      const Way& way = flows_[running_[i]].way;
      if (rates[i] >= 0 || std::ranges::find(way, narrowest) == way.end()) continue;
      rates[i] = share;
      for (const Link link : way) {
        if (link != kNoLink) left[link] -= share;
      }
    }
  }
}

}  // namespace tensorcast::fan_out
