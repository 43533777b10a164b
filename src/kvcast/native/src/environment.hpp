// How floating-point numbers are rounded while a call runs.
#pragma once
#include <cfenv>

namespace kvcast {

// Numbers are rounded and become subnormal as IEEE 754 has it, whatever the thread has set; that is kept.
class Environment {
 public:
  Environment() {
    std::fegetenv(&before_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~Environment() { std::fesetenv(&before_); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  std::fenv_t before_;
};

}  // namespace kvcast
