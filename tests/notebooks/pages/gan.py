# A GAN on one number: two models, two optimizers, noise that is kept, spectral norm.
# %%
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

_ = torch.manual_seed(5)
latent = 4
fixed_noise = torch.randn(6, latent)
fixed_noise
# %%
def weights_init(m):
    if isinstance(m, nn.Linear):
        nn.init.normal_(m.weight, 0.0, 0.3)
        nn.init.zeros_(m.bias)

def mlp(i, o, wrap=lambda layer: layer):
    return nn.Sequential(wrap(nn.Linear(i, 8)), nn.LeakyReLU(0.2), wrap(nn.Linear(8, o)))
# %%
G = mlp(latent, 1).apply(weights_init)
G
# %%
D = mlp(1, 1, spectral_norm)
D
# %%
opt_g = torch.optim.Adam(G.parameters(), lr=1e-2, betas=(0.5, 0.999))
opt_d = torch.optim.Adam(D.parameters(), lr=1e-2, betas=(0.5, 0.999))
bce = nn.BCEWithLogitsLoss()
real_label, fake_label = torch.ones(16, 1), torch.zeros(16, 1)
# %%
losses = {"G": [], "D": []}
def one_step():
    real = 2 + 0.5 * torch.randn(16, 1)
    fake = G(torch.randn(16, latent))
    opt_d.zero_grad()
    d_loss = bce(D(real), real_label) + bce(D(fake.detach()), fake_label)
    d_loss.backward(); opt_d.step()
    opt_g.zero_grad()
    g_loss = bce(D(fake), real_label)
    g_loss.backward(); opt_g.step()
    losses["G"].append(g_loss.item()); losses["D"].append(d_loss.item())
    return fake

fake = one_step()
fake.shape
# %%
for i in range(20): fake = one_step()
losses["D"][-1]
# %%
samples = [G(fixed_noise).detach()]
samples[-1].T
# %%
for i in range(20): fake = one_step()
samples.append(G(fixed_noise).detach())
(samples[1] - samples[0]).abs().mean().item()
# %%
D[0].parametrizations.weight[0]._u.norm(), type(D[0]).__name__
# %%
D.eval(); G.eval()
with torch.no_grad():
    score = D(G(fixed_noise)).sigmoid().mean()
print(f"score {score:.4f}, {len(losses['G'])} steps")
