"""Finds the smallest and fastest precision of a model whose tokens stay nearly those of fp32."""
