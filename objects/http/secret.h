// A text that must not leave the process by accident: a key, a token. It has no way to be printed, compared
// or converted; only Reveal gives it away, at the place that sends or signs. Its bytes lie in pages of their
// own that core files leave out, and are wiped. What a place makes of them (a header, a signature) is that
// place's to keep short-lived. Copies share the bytes. Immutable; thread-safe.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace tensorcast::objects {

class Secret {
 public:
  Secret() = default;
  explicit Secret(std::string_view text);

  bool empty() const { return bytes_ == nullptr; }
  std::string_view Reveal() const;

  // What a message gets that a secret is put into.
  template <typename Sink>
  friend void AbslStringify(Sink& sink, const Secret&) {
    sink.Append("[secret]");
  }

 private:
  struct Bytes;
  std::shared_ptr<const Bytes> bytes_;
};

}  // namespace tensorcast::objects
