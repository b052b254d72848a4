// A text that must not leave the process by accident: a key, a token. A Secret cannot be printed, compared or
// converted; only Reveal returns the text, for the code that sends or signs it. That code must keep what it
// makes of the text (a header, a signature) short-lived. The bytes lie in separate pages that core files
// leave out, and are wiped at the end. Copies share the bytes. Immutable; thread-safe.
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

  // Lets messages take a Secret: they get "[secret]".
  template <typename Sink>
  friend void AbslStringify(Sink& sink, const Secret&) {
    sink.Append("[secret]");
  }

 private:
  struct Bytes;
  std::shared_ptr<const Bytes> bytes_;
};

}  // namespace tensorcast::objects
